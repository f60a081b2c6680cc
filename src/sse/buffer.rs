//! [`Buffer`]: the buffer that frames are appended to.

/// A buffer that frames are appended to: a `Vec<u8>` or a `BytesMut`.
pub trait Buffer: sealed::Sealed {
    #[doc(hidden)]
    fn put(&mut self, bytes: &[u8]);
    #[doc(hidden)]
    fn room_for(&mut self, additional: usize);
}

mod sealed {
    #[expect(unnameable_types, reason = "a sealed trait is not to be named")]
    pub trait Sealed {}
    impl Sealed for Vec<u8> {}
    impl Sealed for bytes::BytesMut {}
}

impl Buffer for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
    #[inline]
    fn room_for(&mut self, additional: usize) {
        self.reserve(additional);
    }
}

impl Buffer for bytes::BytesMut {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
    #[inline]
    fn room_for(&mut self, additional: usize) {
        self.reserve(additional);
    }
}
