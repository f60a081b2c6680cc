//! [`Format`]: the format number of a stored record.
//!
//! Each kind of stored record has its own numbers. A version reads and writes one format of each kind,
//! and refuses all others. A change that another version would misread gets a new number.

use std::fmt;
use std::marker::PhantomData;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::value::RawValue;

/// A kind of stored record.
pub trait RecordKind {
    /// The name of the kind in errors.
    const NAME: &'static str;
    /// The format.
    const FORMAT: u64;
}

/// The field `format` of a record of this kind: the first field, so that a newer record is refused
/// before its other fields are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Format<K>(PhantomData<K>);

/// The error of a stored record whose format this version does not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// A newer version of this crate wrote the record.
    #[error(
        "{kind}: format {format} is newer than this version of ui-message-stream reads ({reads}); \
         upgrade the server"
    )]
    Newer {
        /// The kind of the record.
        kind: &'static str,
        /// The format of the record.
        format: u64,
        /// The format that this version reads.
        reads: u64,
    },
    /// No version of this crate wrote this format.
    #[error("{kind}: the format is not a whole number from 1")]
    Invalid {
        /// The kind of the record.
        kind: &'static str,
    },
}

/// Checks the format of a record in JSON, and nothing else of it.
///
/// A store calls it for a record that cannot be read: fields of a newer record may be unreadable,
/// and in a store that reorders fields they may come before the format. The error holds nothing of
/// the record but its format.
pub(crate) fn check_format<K: RecordKind>(json: &str) -> Result<(), FormatError> {
    #[derive(Deserialize)]
    struct Header<'a> {
        // Its text, because which numbers are read depends on the features of `serde_json`.
        #[serde(borrow)]
        format: &'a RawValue,
    }

    match serde_json::from_str(json) {
        Ok(Header { format }) => check_number::<K>(format.get().parse().ok()),
        Err(_) => Ok(()),
    }
}

fn check_number<K: RecordKind>(format: Option<u64>) -> Result<(), FormatError> {
    let kind = K::NAME;
    let reads = K::FORMAT;
    match format {
        Some(format) if format > reads => Err(FormatError::Newer { kind, format, reads }),
        Some(format) if format == reads => Ok(()),
        _ => Err(FormatError::Invalid { kind }),
    }
}

impl<K> Default for Format<K> {
    fn default() -> Self {
        Format(PhantomData)
    }
}

impl<K: RecordKind> fmt::Debug for Format<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        K::FORMAT.fmt(f)
    }
}

impl<K: RecordKind> Serialize for Format<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        K::FORMAT.serialize(serializer)
    }
}

impl<'de, K: RecordKind> Deserialize<'de> for Format<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        check_number::<K>(u64::deserialize(deserializer).ok()).map_err(de::Error::custom)?;
        Ok(Self::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Run;

    impl RecordKind for Run {
        const NAME: &'static str = "run record";
        const FORMAT: u64 = 1;
    }

    #[derive(Debug, Serialize, Deserialize)]
    #[serde(bound = "K: RecordKind")]
    struct Record<K: RecordKind> {
        format: Format<K>,
        state: u8,
    }

    fn read(format: &str) -> Result<(), String> {
        let json = format!(r#"{{"format":{format},"state":1}}"#);
        let read = serde_json::from_str::<Record<Run>>(&json).map(drop);
        let checked = check_format::<Run>(&json);
        assert_eq!(read.is_ok(), checked.is_ok(), "{format}");
        if let (Err(read), Err(checked)) = (&read, &checked) {
            assert!(read.to_string().starts_with(&checked.to_string()), "{read}");
        }
        checked.map_err(|error| error.to_string())
    }

    #[test]
    fn the_format_is_written_and_read() {
        read("1").unwrap();
        let record = Record::<Run> { format: Format::default(), state: 1 };
        assert_eq!(serde_json::to_string(&record).unwrap(), r#"{"format":1,"state":1}"#);
    }

    #[test]
    fn any_other_format_is_refused_by_name() {
        assert_eq!(
            read("2").unwrap_err(),
            "run record: format 2 is newer than this version of ui-message-stream reads (1); \
             upgrade the server"
        );
        let whole = ["0", "-1", "99999999999999999999", "1e400"];
        for format in whole.into_iter().chain(["1.0", r#""1""#, "[1]", "true", "null"]) {
            let error = read(format).unwrap_err();
            assert_eq!(error, "run record: the format is not a whole number from 1", "{format}");
        }
    }

    #[test]
    fn the_format_of_a_record_that_cannot_be_read_is_found() {
        let json = r#"{"state":"new","format":2}"#;
        assert!(serde_json::from_str::<Record<Run>>(json).is_err());
        assert!(matches!(check_format::<Run>(json), Err(FormatError::Newer { format: 2, .. })));
        for json in ["", "7", r#"{"state":1}"#, r#"{"format":1,"state":"new"}"#] {
            assert!(serde_json::from_str::<Record<Run>>(json).is_err(), "{json}");
            assert_eq!(check_format::<Run>(json), Ok(()), "{json}");
        }
    }
}
