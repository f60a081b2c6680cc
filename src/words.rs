//! The words of enums, as JSON and logs have them.

/// Implements `as_str` and `Display` for an enum: what a host stores or prints is the word of JSON. With
/// `read`, the enum gets `from_wire`, too. With `unlisted`, its JSON is not the word alone, or it has none.
macro_rules! words {
    ($type:ident { $($variant:ident $word:literal)+ }) => {
        words! { unlisted $type { $($variant $word)+ } }

        #[cfg(test)]
        impl $type {
            pub(crate) const ALL: &'static [Self] = &[$($type::$variant),+];
        }
    };
    (read $type:ident { $($variant:ident $word:literal)+ }) => {
        words! { $type { $($variant $word)+ } }

        impl $type {
            pub(crate) fn from_wire(word: &str) -> Option<Self> {
                Some(match word {
                    $($word => $type::$variant,)+
                    _ => return None,
                })
            }
        }
    };
    (unlisted $type:ident { $($variant:ident $(($content:tt))? $word:literal)+ }) => {
        impl $type {
            /// Returns the word for it, as JSON and logs have it.
            pub fn as_str(self) -> &'static str {
                match self { $($type::$variant $(($content))? => $word,)+ }
            }
        }

        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use std::fmt::{Debug, Display};

    use serde::Serialize;
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use crate::approval::{
        ApprovalEvent, ApprovalStatus, OnNewMessage, RejectionReason, RevocationReason,
    };
    use crate::chunk::{FinishReason, InputEncoding};
    use crate::event::Executor;
    use crate::message::{AnswerEnd, Role};

    fn check<T: Copy + PartialEq + Debug + Display + Serialize>(
        all: &[T],
        as_str: fn(T) -> &'static str,
    ) {
        for word in all {
            let json = serde_json::to_value(word).unwrap();
            assert_eq!(json, as_str(*word), "{word:?}");
            assert_eq!(json, word.to_string(), "{word:?}");
        }
    }

    fn check_read<T: Copy + PartialEq + Debug + Display + Serialize + DeserializeOwned>(
        all: &[T],
        as_str: fn(T) -> &'static str,
        from_wire: fn(&str) -> Option<T>,
    ) {
        check(all, as_str);
        assert!(all.iter().all(|word| from_wire(as_str(*word)) == Some(*word)), "{all:?}");
        assert_eq!(from_wire("Another"), None);
    }

    #[test]
    fn a_word_is_the_one_of_json() {
        check_read(Role::ALL, Role::as_str, Role::from_wire);
        check_read(FinishReason::ALL, FinishReason::as_str, FinishReason::from_wire);
        check_read(InputEncoding::ALL, InputEncoding::as_str, InputEncoding::from_wire);
        check(AnswerEnd::ALL, AnswerEnd::as_str);
        check(Executor::ALL, Executor::as_str);
        check(ApprovalEvent::ALL, ApprovalEvent::as_str);
        check(ApprovalStatus::ALL, ApprovalStatus::as_str);
        check(OnNewMessage::ALL, OnNewMessage::as_str);
        check(RevocationReason::ALL, RevocationReason::as_str);
    }

    #[test]
    fn the_word_of_a_rejection_is_the_one_of_json_without_its_content() {
        let revoked = RejectionReason::Revoked(RevocationReason::ByHost);
        assert_eq!(serde_json::to_value(revoked).unwrap(), json!({ revoked.as_str(): "by-host" }));
        let others = [
            RejectionReason::Forged,
            RejectionReason::NewerFormat,
            RejectionReason::NotFound,
            RejectionReason::WrongPrincipalOrChat,
            RejectionReason::BindingMismatch,
            RejectionReason::InputChanged,
            RejectionReason::Expired,
            RejectionReason::Superseded,
            RejectionReason::Lapsed,
            RejectionReason::AlreadyDecided,
            RejectionReason::SelfApproval,
            RejectionReason::InputNotAccepted,
        ];
        check(&others, RejectionReason::as_str);
    }

    #[test]
    fn a_word_can_be_written_into_a_column() {
        assert_eq!(format!("{:<10}|", Role::User), "user      |");
    }
}
