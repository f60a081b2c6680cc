//! The token in an approval id. It proves that this server created the approval request, and for
//! which call.
//!
//! `useChat` returns an approval id unchanged in every version. No other field is certain to come
//! back unchanged. The id is therefore the token:
//!
//! ```text
//! "a1." base64url( version 1 | key id 8 | issued 8 | expires 8 | nonce 16 | binding 32 | mac 32 )
//! ```
//!
//! The numbers are lengths in bytes, except that of `version`, whose value is 1.
//!
//! - `a1.` and `version` are the format of the token. A token of a newer format is rejected like any
//!   other invalid one, and the log and the audit name the reason.
//! - `nonce` is the id of the record.
//! - `binding` is a SHA-256 over all properties that the approval is bound to. The record computes
//!   it.
//! - `mac` is an HMAC-SHA256 over all preceding bytes.
//!
//! The server detects a forged token without reading a store. It compares a genuine token with the
//! record that the nonce identifies.
//!
//! # The proof is inside the approval's id
//!
//! The approval id is the only string that every client sends back unchanged. A separate key ends the stream in
//! clients before 6.0.231, and clients before 6.0.221 lose it together with the answer. The id is computed from the
//! record again whenever it is needed, so it is not stored.
//!
//! # A record in addition to the token
//!
//! A token can be used any number of times. A record can be used once: it is claimed before the tool runs, and it
//! keeps the outcome. If the store loses the record, the approval is rejected. The token is still checked first, so
//! that a forged token never reaches the store. The binding in the token also detects a changed record.
//!
//! The record holds the id of its key, which is derived from the number and the secret. A server seals the record
//! again, for a list or a repeated request, and must not do so with another secret: a store that was restored from
//! a backup holds pending records of calls that were executed since. The operator replaces the secret, and these
//! records are void.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::Mac;
use subtle::ConstantTimeEq;

use super::{KeyId, KeyRing, RecordId, UnixMillis};
use crate::id::ApprovalId;

/// A token without its MAC: of a record, or of an approval id whose MAC was verified with a key of
/// this server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Token {
    pub(super) record: RecordId,
    sealed: [u8; SEALED_BYTES],
}

impl Token {
    /// Returns the times of the request and of its expiry.
    #[cfg(feature = "approvals")]
    pub(super) fn times(&self) -> (UnixMillis, UnixMillis) {
        let time = |at: usize| {
            let bytes = self.sealed[at..].first_chunk().copied();
            UnixMillis(u64::from_be_bytes(bytes.unwrap_or_default()))
        };
        (time(9), time(17))
    }

    #[cfg(feature = "approvals")]
    pub(super) fn key_id(&self) -> KeyId {
        key_id(&self.sealed)
    }

    pub(super) fn new(
        record: RecordId,
        key_id: KeyId,
        issued: UnixMillis,
        expires: UnixMillis,
        binding: [u8; 32],
    ) -> Self {
        let mut sealed = [0; SEALED_BYTES];
        sealed[0] = VERSION;
        sealed[1..9].copy_from_slice(&key_id.0);
        sealed[9..17].copy_from_slice(&issued.0.to_be_bytes());
        sealed[17..25].copy_from_slice(&expires.0.to_be_bytes());
        sealed[25..41].copy_from_slice(record.as_bytes());
        sealed[41..].copy_from_slice(&binding);
        Token { record, sealed }
    }

    /// Creates the approval id. The result depends only on the token and its key.
    ///
    /// Returns `None` if the token's key is unknown, or is retired and past its `not_after`.
    pub(super) fn seal(&self, keys: &KeyRing, now: UnixMillis) -> Option<ApprovalId> {
        let key = keys.verification_key(key_id(&self.sealed), now)?;
        let mac = key.mac().chain_update(self.sealed).finalize().into_bytes();
        let mut bytes = [0; TOKEN_BYTES];
        bytes[..SEALED_BYTES].copy_from_slice(&self.sealed);
        bytes[SEALED_BYTES..].copy_from_slice(&mac);
        let mut text = String::with_capacity(PREFIX.len() + TEXT_LEN);
        text.push_str(PREFIX);
        URL_SAFE_NO_PAD.encode_string(bytes, &mut text);
        Some(ApprovalId::from(text))
    }

    /// Decodes and verifies an approval id. Returns `None` on any error.
    pub(super) fn open(keys: &KeyRing, id: &ApprovalId, now: UnixMillis) -> Option<Self> {
        let bytes = decode(id)?;
        let sealed = *bytes.first_chunk()?;
        let key = keys.verification_key(key_id(&sealed), now)?;
        key.mac().chain_update(sealed).verify_slice(&bytes[SEALED_BYTES..]).ok()?;
        Some(Token { record: RecordId::from_bytes(*sealed[25..].first_chunk()?), sealed })
    }

    /// Returns the token in an approval id without verifying it. Any client can write any token.
    #[cfg(feature = "approvals")]
    pub(super) fn unverified(id: &ApprovalId) -> Option<Self> {
        let sealed = *decode(id)?.first_chunk()?;
        Some(Token { record: RecordId::from_bytes(*sealed[25..].first_chunk()?), sealed })
    }
}

/// Decodes an approval id, and verifies nothing.
fn decode(id: &ApprovalId) -> Option<[u8; TOKEN_BYTES]> {
    let text = id.as_str().strip_prefix(PREFIX).filter(|text| text.len() == TEXT_LEN)?;
    let mut bytes = [0; TOKEN_BYTES];
    // The decoder accepts neither padding nor spare bits, so a token has exactly one text.
    let read = URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).ok()?;
    (read == TOKEN_BYTES && bytes[0] == VERSION).then_some(bytes)
}

/// Returns whether an approval id that does not open looks like one of a newer format: another
/// number in the prefix, or the next version of the bytes.
///
/// No key verifies this. Every client can send such an id, so the result is only a hint for the log
/// and the audit.
#[cfg(any(test, feature = "approvals"))]
pub(super) fn has_newer_format(id: &ApprovalId) -> bool {
    let Some((number, text)) = id.strip_prefix('a').and_then(|rest| rest.split_once('.')) else {
        return false;
    };
    let version = || URL_SAFE_NO_PAD.decode(text.get(..4)?).ok()?.first().copied();
    match number.parse::<u32>() {
        Ok(1) => text.len() == TEXT_LEN && version() == Some(VERSION + 1),
        Ok(number) => number > 1,
        Err(_) => false,
    }
}

/// Compares all properties that the token is bound to, in constant time.
impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.sealed.ct_eq(&other.sealed).into()
    }
}

fn key_id(sealed: &[u8; SEALED_BYTES]) -> KeyId {
    KeyId(sealed[1..].first_chunk().copied().unwrap_or_default())
}

const PREFIX: &str = "a1.";
const VERSION: u8 = 1;
const SEALED_BYTES: usize = 73;
const TOKEN_BYTES: usize = SEALED_BYTES + 32;
/// The length of 105 bytes in base64 without padding.
const TEXT_LEN: usize = 140;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use test_support::secret;

    use super::*;
    use crate::approval::{
        ApprovalRecord, ApprovalState, DefinitionDigest, OnNewMessage, Principal,
    };
    use crate::json::{Format, Json};

    fn record() -> ApprovalRecord {
        ApprovalRecord {
            format: Format::default(),
            id: RecordId::from_bytes([7; 16]),
            key_id: keys().active_key_id(),
            requested_at: UnixMillis(1_000),
            expires_at: UnixMillis(2_000),
            requester: Principal::new("ada").with_tenant("engines"),
            chat_id: "chat".into(),
            message_id: "m1".into(),
            tool_call_id: "call_1".into(),
            tool_name: "delete_file".into(),
            definition: DefinitionDigest::new("delete_file", "deletes", &Json::null()),
            input: Json::parse(r#"{"path":"notes.txt"}"#).unwrap(),
            provider_executed: false,
            idempotent: false,
            on_new_message: OnNewMessage::default(),
            decided_by_others: false,
            editable: Default::default(),
            audience: Vec::new(),
            delivery: None,
            outer: None,
            description: "Delete".into(),
            state: ApprovalState::Pending,
        }
    }

    fn keys() -> KeyRing {
        KeyRing::new(1, &secret(1)).unwrap()
    }

    const NOW: UnixMillis = UnixMillis(1_500);

    fn seal(keys: &KeyRing, record: &ApprovalRecord, now: UnixMillis) -> Option<ApprovalId> {
        record.token().seal(keys, now)
    }

    fn open(keys: &KeyRing, id: &ApprovalId, now: UnixMillis) -> Option<Token> {
        Token::open(keys, id, now)
    }

    #[test]
    fn a_token_created_twice_from_one_record_is_the_same_and_opens() {
        let id = seal(&keys(), &record(), NOW).unwrap();
        assert_eq!(id.len(), PREFIX.len() + TEXT_LEN);
        assert_eq!(seal(&keys(), &record(), NOW).unwrap(), id);
        let token = open(&keys(), &id, NOW).unwrap();
        assert_eq!(token.record, record().id);
        assert!(token == record().token());
    }

    #[test]
    fn no_other_text_opens() {
        let id = seal(&keys(), &record(), NOW).unwrap();
        for at in 0..id.len() {
            for other in ["A", "B", "_", "-", ".", "=", " ", "é"] {
                let mut text = String::from(id.as_str());
                text.replace_range(at..=at, other);
                if text != *id {
                    assert!(open(&keys(), &text.into(), NOW).is_none(), "{at} {other}");
                }
            }
            assert!(open(&keys(), &id[..at].into(), NOW).is_none(), "cut at {at}");
        }
        for text in [format!("{}=", &*id), format!("{} ", &*id), id.replace("a1.", "a2.")] {
            assert!(open(&keys(), &text.as_str().into(), NOW).is_none(), "{text}");
        }
        assert!(open(&KeyRing::new(1, &secret(2)).unwrap(), &id, NOW).is_none(), "another secret");
        assert!(open(&KeyRing::new(2, &secret(1)).unwrap(), &id, NOW).is_none(), "another number");
    }

    #[test]
    fn a_token_is_bound_to_every_field_of_the_request() {
        let token = open(&keys(), &seal(&keys(), &record(), NOW).unwrap(), NOW).unwrap();
        let changes: [fn(&mut ApprovalRecord); 17] = [
            |record| record.id = RecordId::from_bytes([8; 16]),
            |record| record.key_id = KeyId([0; 8]),
            |record| record.requested_at = UnixMillis(999),
            |record| record.expires_at = UnixMillis(2_001),
            |record| record.requester = Principal::new("ada"),
            |record| record.requester = Principal::new("eve").with_tenant("engines"),
            |record| record.requester = Principal::new("").with_tenant("enginesada"),
            |record| record.requester = Principal::anonymous().with_tenant("engines"),
            |record| record.chat_id = "chat2".into(),
            |record| record.message_id = "m2".into(),
            |record| record.tool_call_id = "call_2".into(),
            |record| record.tool_name = "delete_all".into(),
            // One field loses the characters that the next field gains. The length prefixes make
            // them differ.
            |record| (record.chat_id, record.tool_call_id) = ("chatc".into(), "all_1".into()),
            |record| record.definition = DefinitionDigest::new("delete_file", "", &Json::null()),
            |record| record.input = Json::parse(r#"{"path": "notes.txt"}"#).unwrap(),
            |record| record.provider_executed = true,
            |record| record.idempotent = true,
        ];
        for (at, change) in changes.iter().enumerate() {
            let mut other = record();
            change(&mut other);
            assert!(token != other.token(), "change {at}");
        }
    }

    #[test]
    fn a_record_is_not_sealed_with_another_key_of_the_same_number() {
        let replaced = KeyRing::new(1, &secret(2)).unwrap();
        assert_eq!(record().approval_id(&replaced, NOW), None);
        let id = record().approval_id(&keys(), NOW).unwrap();
        assert!(!record().is_bound_to(&id, &replaced, NOW));
        // With both keys in the ring, each record has the id that its own key has sealed.
        let both =
            KeyRing::new(2, &secret(2)).unwrap().with_retired_key(NOW, 1, &secret(1)).unwrap();
        assert_eq!(record().approval_id(&both, NOW), Some(id));
    }

    #[test]
    fn a_retired_key_verifies_until_its_not_after() {
        let id = seal(&keys(), &record(), NOW).unwrap();
        let rotated =
            KeyRing::new(2, &secret(2)).unwrap().with_retired_key(NOW, 1, &secret(1)).unwrap();
        assert!(open(&rotated, &id, NOW).is_some());
        assert!(open(&rotated, &id, UnixMillis(NOW.0 + 1)).is_none());
    }

    /// Uses few characters, including those that could separate the fields of a list, so that one
    /// field often gains the characters that another field loses.
    fn any_record() -> impl Strategy<Value = ApprovalRecord> {
        let name = || "[ab\0\n]{0,3}";
        let who = (prop::option::of(name()), prop::option::of(name()));
        let what = (name(), name(), name(), name(), 0..2_u8, 0..3_u8);
        (who, what, any::<(bool, bool)>()).prop_map(
            |((tenant, id), (chat, message, call, tool, definition, input), flags)| {
                let principal = id.map_or_else(Principal::anonymous, |id| Principal::new(&*id));
                ApprovalRecord {
                    requester: match tenant {
                        Some(tenant) => principal.with_tenant(&*tenant),
                        None => principal,
                    },
                    chat_id: chat.into(),
                    message_id: message.into(),
                    tool_call_id: call.into(),
                    tool_name: tool.into(),
                    definition: DefinitionDigest::new(
                        "",
                        &"a".repeat(definition.into()),
                        &Json::null(),
                    ),
                    input: Json::from_serialize(&"a".repeat(input.into())).unwrap(),
                    provider_executed: flags.0,
                    idempotent: flags.1,
                    on_new_message: OnNewMessage::default(),
                    decided_by_others: false,
                    ..record()
                }
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4))]

        #[test]
        fn only_equal_records_have_the_same_token(
            records in prop::collection::vec(any_record(), 5_000)
        ) {
            let mut known: HashMap<[u8; SEALED_BYTES], &ApprovalRecord> = HashMap::new();
            let mut distinct: HashMap<String, [u8; SEALED_BYTES]> = HashMap::new();
            for record in &records {
                let bytes = record.token().sealed;
                prop_assert_eq!(*known.entry(bytes).or_insert(record), record);
                let fields = serde_json::to_string(record).unwrap();
                prop_assert_eq!(*distinct.entry(fields).or_insert(bytes), bytes);
            }
            prop_assert_eq!(known.len(), distinct.len());
        }
    }
}
