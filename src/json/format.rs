//! [`Format`]: the format number of a stored record.
//!
//! Each kind of stored record has its own numbers. A version reads the newest format and at least the
//! one before it, and refuses all others. A record without a number has format 1.
//!
//! A record is written with the lowest number whose readers understand it. So an older server reads
//! what it can while servers of two versions run.
//!
//! A change that an older version would misread gets a new number, serde aliases or a conversion for
//! the previous format, and a fixture in `fixtures/formats/`.

use std::fmt;
use std::marker::PhantomData;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

/// A kind of stored record.
pub(crate) trait RecordKind {
    /// The name of the kind in errors.
    const NAME: &'static str;
    /// The newest format.
    const FORMAT: u64;
    /// The oldest format that this version reads.
    const OLDEST: u64 = if Self::FORMAT > 1 { Self::FORMAT - 1 } else { 1 };
}

/// The field `format` of a record of this kind: the first field, so that a newer record is refused
/// before its other fields are read.
///
/// Reading it checks the number, and does not keep it: a record is written in a format of this version.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format<K>(u64, PhantomData<K>);

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
        /// The formats that this version reads.
        reads: String,
    },
    /// The record has an older format than those that this version reads.
    #[error(
        "{kind}: format {format} is older than this version of ui-message-stream reads ({reads}); \
         upgrade one version after another"
    )]
    Older {
        /// The kind of the record.
        kind: &'static str,
        /// The format of the record.
        format: u64,
        /// The formats that this version reads.
        reads: String,
    },
    /// The format is not a whole number from 1.
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
    struct Header {
        /// `None` if the record has no number. The number `null` is invalid.
        #[serde(default, deserialize_with = "some_value")]
        format: Option<Value>,
    }

    match serde_json::from_str(json) {
        Ok(Header { format }) => {
            check_number::<K>(format.map_or(Some(UNNUMBERED), |format| format.as_u64()))
        }
        Err(_) => Ok(()),
    }
}

fn some_value<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

fn check_number<K: RecordKind>(format: Option<u64>) -> Result<(), FormatError> {
    let kind = K::NAME;
    let format = format.filter(|format| *format > 0).ok_or(FormatError::Invalid { kind })?;
    let reads = || match (K::OLDEST, K::FORMAT) {
        (oldest, newest) if oldest == newest => newest.to_string(),
        (oldest, newest) if oldest + 1 == newest => format!("{oldest} and {newest}"),
        (oldest, newest) => format!("{oldest} to {newest}"),
    };
    if format > K::FORMAT {
        return Err(FormatError::Newer { kind, format, reads: reads() });
    }
    if format < K::OLDEST {
        return Err(FormatError::Older { kind, format, reads: reads() });
    }
    Ok(())
}

impl<K: RecordKind> Format<K> {
    /// Returns the format of a record without a number, as the default of serde. It compiles only
    /// for a kind whose format 1 is read.
    pub(crate) fn unnumbered() -> Self {
        const { assert!(K::OLDEST == UNNUMBERED) };
        Self::default()
    }

    /// Returns the format before the newest one, for a record whose readers need no more.
    pub(crate) fn previous() -> Self {
        const { assert!(K::OLDEST < K::FORMAT) };
        Format(K::FORMAT - 1, PhantomData)
    }
}

/// The format of a record that has no number.
const UNNUMBERED: u64 = 1;

impl<K: RecordKind> Default for Format<K> {
    /// Returns the newest format.
    fn default() -> Self {
        Format(K::FORMAT, PhantomData)
    }
}

impl<K> fmt::Debug for Format<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<K> Serialize for Format<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
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

    #[derive(Debug, PartialEq)]
    struct First;

    impl RecordKind for First {
        const NAME: &'static str = "run record";
        const FORMAT: u64 = 1;
    }

    #[derive(Debug)]
    struct Third;

    impl RecordKind for Third {
        const NAME: &'static str = "run record";
        const FORMAT: u64 = 3;
    }

    #[derive(Debug, Serialize, Deserialize)]
    #[serde(bound = "K: RecordKind")]
    struct Record<K: RecordKind> {
        format: Format<K>,
        state: u8,
    }

    fn read<K: RecordKind>(format: &str) -> Result<(), String> {
        let json = format!(r#"{{"format":{format},"state":1}}"#);
        let read = serde_json::from_str::<Record<K>>(&json).map(drop);
        let checked = check_format::<K>(&json);
        assert_eq!(read.is_ok(), checked.is_ok(), "{format}");
        if let (Err(read), Err(checked)) = (&read, &checked) {
            assert!(read.to_string().starts_with(&checked.to_string()), "{read}");
        }
        checked.map_err(|error| error.to_string())
    }

    #[test]
    fn the_current_format_and_the_one_before_are_read() {
        for format in ["2", "3"] {
            read::<Third>(format).unwrap();
        }
        read::<First>("1").unwrap();
        let record = Record::<Third> { format: Format::default(), state: 1 };
        assert_eq!(serde_json::to_string(&record).unwrap(), r#"{"format":3,"state":1}"#);
    }

    #[test]
    fn any_other_format_is_refused_by_name() {
        assert_eq!(
            read::<Third>("4").unwrap_err(),
            "run record: format 4 is newer than this version of ui-message-stream reads (2 and 3); \
             upgrade the server"
        );
        assert_eq!(
            read::<First>("2").unwrap_err(),
            "run record: format 2 is newer than this version of ui-message-stream reads (1); \
             upgrade the server"
        );
        assert_eq!(
            read::<Third>("1").unwrap_err(),
            "run record: format 1 is older than this version of ui-message-stream reads (2 and 3); \
             upgrade one version after another"
        );
        for format in ["0", "-1", "2.0", r#""2""#, "[2]", "true", "null", "99999999999999999999"] {
            let error = read::<Third>(format).unwrap_err();
            assert_eq!(error, "run record: the format is not a whole number from 1", "{format}");
        }
    }

    #[test]
    fn a_record_without_a_number_has_format_1() {
        #[derive(Debug, Deserialize)]
        struct Unnumbered {
            #[serde(default = "Format::unnumbered")]
            format: Format<First>,
        }

        let json = r#"{"state":1}"#;
        assert_eq!(serde_json::from_str::<Unnumbered>(json).unwrap().format, Format::unnumbered());
        assert_eq!(check_format::<First>(json), Ok(()));
        assert!(serde_json::from_str::<Record<Third>>(json).is_err());
        assert!(matches!(check_format::<Third>(json), Err(FormatError::Older { format: 1, .. })));
    }

    #[test]
    fn the_format_of_a_record_that_cannot_be_read_is_found() {
        let json = r#"{"state":"new","format":4}"#;
        assert!(serde_json::from_str::<Record<Third>>(json).is_err());
        assert!(matches!(check_format::<Third>(json), Err(FormatError::Newer { format: 4, .. })));
        for json in ["", "7", r#"{"format":3,"state":"new"}"#] {
            assert_eq!(check_format::<Third>(json), Ok(()), "{json}");
        }
    }
}
