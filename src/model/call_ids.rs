//! [`CallIdRule`]: which ids of calls a provider accepts.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use sha2::{Digest, Sha256};

/// Which ids of calls a provider accepts. A conversation may hold those of another one, and a provider refuses the whole
/// request for one id.
///
/// ```
/// use ui_message_stream::model::CallIdRule;
///
/// let rule = CallIdRule::new(1..=40, |character| character.is_ascii_alphanumeric());
/// assert_eq!(rule.apply("call1"), "call1");
/// // The same in each request, for the call and its result.
/// assert_eq!(rule.apply("functions.search:0"), rule.apply("functions.search:0"));
/// assert!(rule.apply("functions.search:0").chars().all(|char| char.is_ascii_alphanumeric()));
/// ```
#[derive(Debug, Clone)]
pub struct CallIdRule {
    length: RangeInclusive<usize>,
    is_allowed: fn(char) -> bool,
}

impl CallIdRule {
    /// Creates a rule: how many bytes an id has, and which characters. Letters and digits of ASCII must be allowed.
    pub const fn new(length: RangeInclusive<usize>, is_allowed: fn(char) -> bool) -> Self {
        CallIdRule { length, is_allowed }
    }

    /// Returns the id itself if it is accepted, otherwise letters and digits that are derived from it: the maximum
    /// number, and at most 32.
    pub fn apply<'i>(&self, id: &'i str) -> Cow<'i, str> {
        if self.length.contains(&id.len()) && id.chars().all(self.is_allowed) {
            return id.into();
        }
        let characters = Sha256::digest(id).into_iter().take(*self.length.end()).map(|byte| {
            let place = usize::from(byte) % ALPHANUMERIC.len();
            char::from(ALPHANUMERIC.get(place).copied().unwrap_or(b'0'))
        });
        characters.collect::<String>().into()
    }
}

const ALPHANUMERIC: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
