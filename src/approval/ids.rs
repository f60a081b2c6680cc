//! [`RecordId`], [`LeaseHolderId`], [`KeyId`] and [`DefinitionDigest`]: bytes that are written as
//! lower-case hex.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest, Sha256};

use super::Principal;
use crate::json::Json;

/// A SHA-256 digest of a tool definition: name, description, input schema, and optional extras.
///
/// The extras are other properties of the tool that users rely on, such as a title.
///
/// An approval applies only to the tool that the user was asked about. A tool server may replace a
/// tool by another one with the same name before the user responds. The user must then be asked
/// again.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DefinitionDigest(pub(super) [u8; 32]);

impl DefinitionDigest {
    /// Computes the digest of a tool definition.
    pub fn new(tool_name: &str, description: &str, input_schema: &Json) -> Self {
        let mut digest = Sha256::new();
        for field in [tool_name, description, input_schema.as_str()] {
            digest.update((field.len() as u64).to_be_bytes());
            digest.update(field);
        }
        DefinitionDigest(digest.finalize().into())
    }

    /// Returns the digest of this definition with `extras`, such as a title or claims about the
    /// tool.
    #[must_use]
    pub fn with_extras(self, extras: &Json) -> Self {
        let mut digest = Sha256::new();
        digest.update(self.0);
        digest.update(extras.as_str());
        DefinitionDigest(digest.finalize().into())
    }

    pub(super) fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// The id of an approval record. It is not the approval id: knowledge of a record id grants no
/// rights.
///
/// Its first 12 bits are the [bucket](Self::bucket) of the requester, and the others are random.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId([u8; 16]);

/// The id of an attempt to run an approved tool.
///
/// If the response to a claim was lost, the holder of this id can claim the record again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseHolderId([u8; 16]);

/// The id of a key of a [`KeyRing`](super::KeyRing). It is derived from the number and the secret of
/// the key, and does not tell anything about the secret.
///
/// Another secret gives another id, also under the same number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyId(pub(super) [u8; 8]);

/// The error of a text that is not the expected number of bytes in lower-case hex.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected {0} bytes in lower-case hex")]
pub struct HexError(usize);

impl RecordId {
    /// Creates the id of a new record of this requester from 16 random bytes, of which the first 12 bits
    /// are replaced.
    pub fn of_requester(requester: &Principal, random: [u8; 16]) -> Self {
        let [first, second, ..] = digest(&[requester.tenant(), requester.id()]);
        let mut bytes = random;
        bytes[0] = first;
        bytes[1] = second & 0xf0 | bytes[1] & 0x0f;
        RecordId(bytes)
    }

    /// Creates an id from its bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        RecordId(bytes)
    }

    /// Returns the bucket that the id names: a number below 4096, which is the same for all records of a
    /// requester.
    ///
    /// A store of several nodes keeps the records and the lists of a requester together, and finds them by an
    /// id alone.
    pub fn bucket(self) -> u16 {
        bucket(&self.0)
    }

    pub(super) fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl LeaseHolderId {
    /// Creates an id from 16 random bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        LeaseHolderId(bytes)
    }

    /// Returns the id of a holder that is named by a text.
    #[cfg(feature = "approvals")]
    pub fn digest_of(name: &str) -> Self {
        let mut id = [0; 16];
        id.copy_from_slice(&Sha256::digest(name)[..16]);
        LeaseHolderId(id)
    }
}

/// Returns the SHA-256 digest of optional texts.
///
/// Each text is hashed with its presence and its length, so that different texts never hash the same bytes.
pub(super) fn digest(texts: &[Option<&str>]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for text in texts {
        match text {
            Some(text) => {
                digest.update([1]);
                digest.update((text.len() as u64).to_be_bytes());
                digest.update(text);
            }
            None => digest.update([0]),
        }
    }
    digest.finalize().into()
}

/// Returns the first 12 bits.
pub(super) fn bucket(bytes: &[u8]) -> u16 {
    let [first, second] = bytes.first_chunk().copied().unwrap_or_default();
    u16::from_be_bytes([first, second]) >> 4
}

macro_rules! impl_hex {
    ($($name:ident($bytes:literal))*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = HexError;

            fn from_str(text: &str) -> Result<Self, HexError> {
                let digit = |byte: u8| match byte {
                    b'0'..=b'9' => Ok(byte - b'0'),
                    b'a'..=b'f' => Ok(byte - b'a' + 10),
                    _ => Err(HexError($bytes)),
                };
                if text.len() != 2 * $bytes {
                    return Err(HexError($bytes));
                }
                let mut bytes = [0; $bytes];
                for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
                    *byte = digit(pair[0])? << 4 | digit(pair[1])?;
                }
                Ok($name(bytes))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    )*};
}

impl_hex! { RecordId(16) LeaseHolderId(16) KeyId(8) DefinitionDigest(32) }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_a_definition_without_extras_never_changes() {
        let plain = DefinitionDigest::new("delete_file", "Deletes.", &Json::null());
        assert_eq!(plain.to_string(), PLAIN);
        let titled = |title| plain.with_extras(&Json::string(title));
        assert_eq!(titled("One"), titled("One"));
        assert_ne!(titled("One"), titled("Two"));
        assert_ne!(plain.with_extras(&Json::null()), plain);
    }

    #[test]
    fn the_bucket_of_a_requester_never_changes_and_the_rest_of_an_id_is_random() {
        // The first three digits of the SHA-256 of the tenant and the id, each with its presence and its length.
        for (requester, bucket) in [
            (Principal::new("ada"), BUCKETS[0]),
            (Principal::new("ada").with_tenant("engines"), BUCKETS[1]),
            (Principal::anonymous(), BUCKETS[2]),
        ] {
            let ids = [[0; 16], [0xff; 16]].map(|bytes| RecordId::of_requester(&requester, bytes));
            assert_eq!(ids.map(RecordId::bucket), [bucket; 2], "{requester}");
            let [zeros, ones] = ids.map(|id| id.to_string());
            assert_eq!(zeros, format!("{bucket:03x}{}", "0".repeat(29)));
            assert_eq!(ones, format!("{bucket:03x}{}", "f".repeat(29)));
        }
    }

    const BUCKETS: [u16; 3] = [0xcd1, 0x387, 0x96a];

    /// SHA-256 of the three fields, each preceded by its length as 8 bytes.
    const PLAIN: &str = "020b0eb83ba84859371dfb50eda4029ba18301ce110f636c20a4ea4ecffa06dc";
}
