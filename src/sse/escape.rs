//! Fast escaping of JSON strings without unsafe code. Most text needs no escape.

use super::buffer::Buffer;

/// Appends the contents of a JSON string, without quotes.
#[inline]
pub(super) fn append_escaped(out: &mut impl Buffer, text: &str) {
    if is_plain(text.as_bytes()) {
        out.put(text.as_bytes());
    } else {
        append_with_escapes(out, text.as_bytes());
    }
}

/// Returns whether no byte needs an escape. The loop over sixteen bytes has no branch inside, so
/// that the compiler makes vector instructions of it. The rest is checked a word at a time, and its
/// end with a word that begins before it.
#[inline]
fn is_plain(bytes: &[u8]) -> bool {
    let (blocks, rest) = bytes.as_chunks::<16>();
    for block in blocks {
        if block.iter().fold(false, |any, &byte| any | needs_escape(byte)) {
            return false;
        }
    }
    if let (Some(first), Some(last)) = (rest.first_chunk::<8>(), rest.last_chunk::<8>()) {
        let first = u64::from_ne_bytes(*first);
        let last = u64::from_ne_bytes(*last);
        return !word_needs_escape(first) && !word_needs_escape(last);
    }
    if let (Some(first), Some(last)) = (rest.first_chunk::<4>(), rest.last_chunk::<4>()) {
        let first = u32::from_ne_bytes(*first);
        let last = u32::from_ne_bytes(*last);
        return !word_needs_escape(u64::from(first) << 32 | u64::from(last));
    }
    !rest.iter().fold(false, |any, &byte| any | needs_escape(byte))
}

#[inline]
fn needs_escape(byte: u8) -> bool {
    (byte < 0x20) | (byte == b'"') | (byte == b'\\')
}

/// Returns whether one of eight bytes is below 0x20, a quote or a backslash.
///
/// `(x - lows) & !x & highs` marks bytes below a bound; a byte equal to `c` is zero in `x ^ c`.
/// It may also mark a byte above a marked one, but never one below the first marked byte. So the
/// boolean result is exact.
#[inline]
fn word_needs_escape(word: u64) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    let below = |x: u64, bound: u64| x.wrapping_sub(ONES * bound) & !x;
    let control = below(word, 0x20);
    let quote = below(word ^ (ONES * u64::from(b'"')), 1);
    let backslash = below(word ^ (ONES * u64::from(b'\\')), 1);
    (control | quote | backslash) & HIGHS != 0
}

#[cold]
#[inline(never)]
fn append_with_escapes(out: &mut impl Buffer, bytes: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut plain_from = 0;
    for (index, &byte) in bytes.iter().enumerate() {
        if !needs_escape(byte) {
            continue;
        }
        out.put(&bytes[plain_from..index]);
        plain_from = index + 1;
        match byte {
            b'"' => out.put(b"\\\""),
            b'\\' => out.put(b"\\\\"),
            b'\n' => out.put(b"\\n"),
            b'\r' => out.put(b"\\r"),
            b'\t' => out.put(b"\\t"),
            other => {
                let high = HEX[usize::from(other >> 4)];
                let low = HEX[usize::from(other & 15)];
                out.put(&[b'\\', b'u', b'0', b'0', high, low]);
            }
        }
    }
    out.put(&bytes[plain_from..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_at_every_position_is_read_back_unchanged() {
        for length in 1..40 {
            for place in 0..length {
                for code in 0..0x80_u8 {
                    let mut text = vec![b'x'; length];
                    text[place] = code;
                    let text = String::from_utf8(text).unwrap();
                    let mut out = vec![b'"'];
                    append_escaped(&mut out, &text);
                    out.push(b'"');
                    assert!(!out[1..].iter().any(|byte| *byte < 0x20));
                    assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
                }
            }
        }
    }

    #[test]
    fn non_ascii_text_is_not_escaped() {
        let mut out = Vec::new();
        append_escaped(&mut out, "é\u{2028}😀\u{7f}");
        assert_eq!(out, "é\u{2028}😀\u{7f}".as_bytes());
    }
}
