//! [`AiSdkSignature`]: the AI SDK's own signature of an approval request.
//!
//! The signature is for deployments in which Node and Rust servers serve the same chats: a server
//! of one kind verifies the approval requests that the other kind signed with
//! `experimental_toolApprovalSecret`. The signature is sent in the field `signature` of the
//! approval request, which clients keep since 6.0.221.
//!
//! The signature is an addition and proves little: that a server requested approval for this call
//! under this approval id. It does not identify the principal, the chat or the time. It never
//! expires, and it can be redeemed any number of times. It replaces neither the host's own record
//! nor a ledger.
//!
//! ```text
//! digest    = base64url(SHA-256(canonical form of the input))
//! signed    = approvalId \n toolCallId \n toolName \n digest                           Lines
//!           = ["ai-sdk-tool-approval-v1",approvalId,toolCallId,toolName,digest]        JsonArray
//! signature = base64url(HMAC-SHA-256(secret, signed))                            43 characters
//! ```

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::canonical_json::{CanonicalJson, InexactInputError};
use crate::id::{ApprovalId, ToolCallId};
use crate::json::Json;

/// Signs approval requests as the AI SDK does, and verifies signatures of the AI SDK.
///
/// ```
/// use ui_message_stream::Json;
/// use ui_message_stream::approval::{AiSdkSignature, SignatureForm, SignedCall};
///
/// let signature = AiSdkSignature::new(b"the secret of the Node servers, 32 bytes or more")?;
/// let call = SignedCall {
///     approval_id: &"ap_1".into(),
///     tool_call_id: &"call_1".into(),
///     tool_name: "delete_file",
///     input: &Json::parse(r#"{"path":"notes.txt"}"#)?,
/// };
/// let signed = signature.sign(SignatureForm::Lines, call)?;
/// signature.verify(&signed, call)?;
///
/// let other = Json::parse(r#"{"path":"letters.txt"}"#)?;
/// assert!(signature.verify(&signed, SignedCall { input: &other, ..call }).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The secret itself is not stored. Only the state that HMAC derives from it is stored, and that
/// state is wiped when this value is dropped.
#[derive(Clone)]
pub struct AiSdkSignature {
    keyed: Hmac<Sha256>,
}

impl AiSdkSignature {
    /// The minimum length of a secret in bytes: the length of the signature.
    pub const MIN_SECRET_LEN: usize = 32;

    /// Creates a signer from the secret that all servers share, the bytes of
    /// `experimental_toolApprovalSecret`.
    ///
    /// The AI SDK accepts a secret of any length. This function rejects a short secret, because
    /// every client holds the signature and all signed data. A client can therefore try secrets
    /// without a time limit and without contacting a server. A deployment with a shorter secret
    /// needs a new secret on all servers.
    ///
    /// # Errors
    /// [`SecretTooShort`] if the secret has fewer than [`AiSdkSignature::MIN_SECRET_LEN`] bytes.
    pub fn new(secret: &[u8]) -> Result<Self, SecretTooShort> {
        if secret.len() < Self::MIN_SECRET_LEN {
            return Err(SecretTooShort { len: secret.len() });
        }
        Self::from_secret_of_any_length(secret)
    }

    fn from_secret_of_any_length(secret: &[u8]) -> Result<Self, SecretTooShort> {
        // HMAC accepts keys of any length, so this error never occurs.
        let keyed =
            Hmac::new_from_slice(secret).map_err(|_| SecretTooShort { len: secret.len() })?;
        Ok(AiSdkSignature { keyed })
    }

    /// Signs a call that needs a user's approval. Returns the signature in base64url without
    /// padding.
    ///
    /// # Errors
    /// - [`SignCallError::InexactInputError`] if a browser would show the input differently. The AI
    ///   SDK signs the value that JavaScript reads, which is not the value that the tool would run
    ///   with.
    /// - [`SignCallError::LineBreak`] if an id or the tool name holds a line break and the form is
    ///   [`SignatureForm::Lines`]. The signature would also be valid for other calls, and current
    ///   versions of the AI SDK reject it.
    pub fn sign(&self, form: SignatureForm, call: SignedCall<'_>) -> Result<String, SignCallError> {
        if form == SignatureForm::Lines && call.has_line_break() {
            return Err(SignCallError::LineBreak);
        }
        let digest = call.input_digest()?;
        let mac = self.mac_over(&call.payload(form, &digest)).finalize();
        Ok(URL_SAFE_NO_PAD.encode(mac.into_bytes()))
    }

    /// Verifies the signature that came back with an approval response, in either form.
    ///
    /// The input must be the one that the tool would run with: the server's own input. The time of
    /// the comparison does not depend on the position of the first difference.
    ///
    /// Like the AI SDK since 7.0.36, this function rejects the form [`SignatureForm::Lines`] for a
    /// call with a line break in an id or the tool name. Unlike the AI SDK, this function accepts
    /// only base64url without padding, which is what the AI SDK writes.
    ///
    /// # Errors
    /// - [`VerifySignatureError::NotBase64Url`] if the signature is not base64url without padding.
    /// - [`VerifySignatureError::InexactInputError`] if a browser would show the input differently.
    /// - [`VerifySignatureError::OtherCallOrSecret`] if the signature was made for another call or
    ///   with another secret.
    pub fn verify(
        &self,
        signature: &str,
        call: SignedCall<'_>,
    ) -> Result<(), VerifySignatureError> {
        let signature =
            URL_SAFE_NO_PAD.decode(signature).map_err(|_| VerifySignatureError::NotBase64Url)?;
        let digest = call.input_digest()?;
        let is_valid =
            |form| self.mac_over(&call.payload(form, &digest)).verify_slice(&signature).is_ok();
        if is_valid(SignatureForm::JsonArray)
            || (!call.has_line_break() && is_valid(SignatureForm::Lines))
        {
            return Ok(());
        }
        Err(VerifySignatureError::OtherCallOrSecret)
    }

    fn mac_over(&self, payload: &str) -> Hmac<Sha256> {
        self.keyed.clone().chain_update(payload)
    }
}

impl fmt::Debug for AiSdkSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AiSdkSignature([redacted])")
    }
}

/// The data of a call that a signature covers.
#[derive(Debug, Clone, Copy)]
pub struct SignedCall<'a> {
    /// The id of the approval request.
    pub approval_id: &'a ApprovalId,
    /// The id of the tool call.
    pub tool_call_id: &'a ToolCallId,
    /// The name of the tool.
    pub tool_name: &'a str,
    /// The input that the tool would run with.
    pub input: &'a Json,
}

impl SignedCall<'_> {
    fn names(&self) -> [&str; 3] {
        [self.approval_id.as_str(), self.tool_call_id.as_str(), self.tool_name]
    }

    fn has_line_break(&self) -> bool {
        self.names().iter().any(|name| name.contains('\n'))
    }

    fn input_digest(&self) -> Result<String, InexactInputError> {
        let form = CanonicalJson::of(self.input)?;
        Ok(URL_SAFE_NO_PAD.encode(Sha256::digest(form.as_str())))
    }

    fn payload(&self, form: SignatureForm, digest: &str) -> String {
        let [approval_id, tool_call_id, tool_name] = self.names();
        match form {
            SignatureForm::Lines => [approval_id, tool_call_id, tool_name, digest].join("\n"),
            SignatureForm::JsonArray => {
                let fields =
                    ["ai-sdk-tool-approval-v1", approval_id, tool_call_id, tool_name, digest];
                let fields = fields.map(|field| Json::string(field).to_string());
                format!("[{}]", fields.join(","))
            }
        }
    }
}

/// The encoding of a call before it is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignatureForm {
    /// The fields joined by line breaks.
    ///
    /// This is the only form that 6.0.202 … 6.0.326 and 7.0.0 … 7.0.35 support. Later versions
    /// still verify it.
    Lines,
    /// A JSON array of the fields, which is unambiguous. The AI SDK writes this form since 7.0.36.
    JsonArray,
}

/// The error of a secret that is short enough to be guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the secret has {len} bytes, at least {} are needed; take random ones",
    AiSdkSignature::MIN_SECRET_LEN
)]
pub struct SecretTooShort {
    len: usize,
}

/// The reason why a call was not signed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignCallError {
    /// A browser would show the input differently.
    #[error("the tool input is not shown as it is: {0}")]
    InexactInputError(#[from] InexactInputError),
    /// An id or the tool name holds a line break.
    #[error("an id or tool name with a line break, which the form of lines cannot tell apart")]
    LineBreak,
}

/// The reason why a signature proves nothing about a call. It must not be sent to a client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifySignatureError {
    /// The signature is not base64url without padding.
    #[error("the signature is not base64url without padding")]
    NotBase64Url,
    /// A browser would show the input differently.
    ///
    /// A Node server may have signed such a call, but it then signed the value that JavaScript
    /// reads.
    #[error("the tool input is not shown as it is: {0}")]
    InexactInputError(#[from] InexactInputError),
    /// The signature was made for another call or with another secret.
    #[error("the signature was made for another call or with another secret")]
    OtherCallOrSecret,
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use hmac::EagerHash;
    use hmac::digest::zeroize::ZeroizeOnDrop;
    use serde::Deserialize;

    use super::*;

    const UPSTREAM: &str = include_str!("../../fixtures/upstream/signature.json");
    const NEWEST: &str = "7.0.173";

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Upstream {
        vectors: Vec<Vector>,
        signed_but_not_shown: Vec<InexactInput>,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Vector {
        note: String,
        secret: String,
        approval_id: ApprovalId,
        tool_call_id: ToolCallId,
        tool_name: String,
        input_text: String,
        canonical_input: String,
        input_digest: String,
        lines: Signed,
        json_array: Signed,
        runs: HashMap<String, Runs>,
    }

    #[derive(Deserialize)]
    struct Signed {
        payload: String,
        signature: String,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Runs {
        lines: bool,
        json_array: bool,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct InexactInput {
        note: String,
        input_text: String,
    }

    fn upstream() -> Upstream {
        serde_json::from_str(UPSTREAM).unwrap()
    }

    fn with_secret(secret: &str) -> AiSdkSignature {
        AiSdkSignature::from_secret_of_any_length(secret.as_bytes()).unwrap()
    }

    impl Vector {
        fn call<'a>(&'a self, input: &'a Json) -> SignedCall<'a> {
            let Vector { approval_id, tool_call_id, tool_name, .. } = self;
            SignedCall { approval_id, tool_call_id, tool_name, input }
        }
    }

    #[test]
    fn signatures_equal_those_of_the_sdk_and_verify_as_in_its_newest_version() {
        let vectors = upstream().vectors;
        assert!(!vectors.is_empty());
        for vector in vectors {
            let (note, key) = (&vector.note, with_secret(&vector.secret));
            let input = Json::parse(&vector.input_text).unwrap();
            let call = vector.call(&input);
            assert_eq!(CanonicalJson::of(&input).unwrap().as_str(), vector.canonical_input);
            assert_eq!(call.input_digest().unwrap(), vector.input_digest, "{note}");
            let digest = &vector.input_digest;
            let payload = |form| call.payload(form, digest);
            assert_eq!(payload(SignatureForm::Lines), vector.lines.payload, "{note}");
            assert_eq!(payload(SignatureForm::JsonArray), vector.json_array.payload, "{note}");

            let signed = key.sign(SignatureForm::JsonArray, call).unwrap();
            assert_eq!(signed, vector.json_array.signature, "{note}");
            match key.sign(SignatureForm::Lines, call) {
                Ok(signed) => assert_eq!(signed, vector.lines.signature, "{note}"),
                Err(error) => assert!(note.contains("line break"), "{note}: {error}"),
            }
            let runs = &vector.runs[NEWEST];
            let verifies = |signed: &Signed| key.verify(&signed.signature, call).is_ok();
            assert_eq!(verifies(&vector.lines), runs.lines, "{note}");
            assert_eq!(verifies(&vector.json_array), runs.json_array, "{note}");
        }
    }

    #[test]
    fn an_input_that_a_browser_shows_differently_is_neither_signed_nor_verified() {
        let key = with_secret("s");
        let inexact = upstream().signed_but_not_shown;
        assert!(!inexact.is_empty());
        for InexactInput { note, input_text } in inexact {
            let raw = serde_json::value::RawValue::from_string(input_text).unwrap();
            let call = SignedCall {
                approval_id: &"a".into(),
                tool_call_id: &"c".into(),
                tool_name: "t",
                input: &Json::received(&raw).unwrap(),
            };
            let signed = key.sign(SignatureForm::JsonArray, call);
            assert!(matches!(signed, Err(SignCallError::InexactInputError(_))), "{note}");
            let verified = key.verify("AAAA", call);
            assert!(matches!(verified, Err(VerifySignatureError::InexactInputError(_))), "{note}");
        }
    }

    #[test]
    fn a_signature_is_valid_for_no_other_call_and_no_other_secret() {
        let vector = &upstream().vectors[0];
        let input = Json::parse(&vector.input_text).unwrap();
        let call = vector.call(&input);
        let other_input = Json::null();
        let others = [
            SignedCall { approval_id: &"approval-2".into(), ..call },
            SignedCall { tool_call_id: &"call_2".into(), ..call },
            SignedCall { tool_name: "read_file", ..call },
            SignedCall { input: &other_input, ..call },
        ];
        let key = with_secret(&vector.secret);
        for form in [SignatureForm::Lines, SignatureForm::JsonArray] {
            let signed = key.sign(form, call).unwrap();
            assert!(key.verify(&signed, call).is_ok());
            for other in others {
                let refused = key.verify(&signed, other);
                assert!(matches!(refused, Err(VerifySignatureError::OtherCallOrSecret)));
            }
            assert!(with_secret("another").verify(&signed, call).is_err());
        }
    }

    #[test]
    fn a_line_break_does_not_make_a_signature_valid_for_another_call() {
        let key = with_secret("s");
        let input = Json::null();
        let (id, other_id) = (ApprovalId::from("a"), ApprovalId::from("a\nb"));
        let (call_id, other_call_id) = (ToolCallId::from("b\nc"), ToolCallId::from("c"));
        let call =
            SignedCall { approval_id: &id, tool_call_id: &call_id, tool_name: "t", input: &input };
        let other = SignedCall { approval_id: &other_id, tool_call_id: &other_call_id, ..call };
        let digest = call.input_digest().unwrap();
        let payload = call.payload(SignatureForm::Lines, &digest);
        assert_eq!(payload, other.payload(SignatureForm::Lines, &digest));
        // An old version of the AI SDK signs the call like this.
        let signed = URL_SAFE_NO_PAD.encode(key.mac_over(&payload).finalize().into_bytes());
        for call in [call, other] {
            assert!(key.verify(&signed, call).is_err());
            let refused = key.sign(SignatureForm::Lines, call);
            assert!(matches!(refused, Err(SignCallError::LineBreak)));
            let signed = key.sign(SignatureForm::JsonArray, call).unwrap();
            assert!(key.verify(&signed, call).is_ok());
        }
    }

    #[test]
    fn a_signature_has_one_encoding_and_every_bit_of_it_counts() {
        let vector = &upstream().vectors[0];
        let input = Json::parse(&vector.input_text).unwrap();
        let (key, call) = (with_secret(&vector.secret), vector.call(&input));
        let signed = &vector.lines.signature;
        assert!(key.verify(signed, call).is_ok());
        assert_eq!(signed.strip_suffix("oHs"), Some(&signed[..40]));
        for spelling in [
            format!("{signed}="),
            format!(" {signed}"),
            format!("{signed}\n"),
            signed.replace('-', "+").replace('_', "/") + "=",
            // The same 32 bytes with the two spare bits set.
            signed[..42].to_owned() + "t",
            "%".to_owned(),
            "é".to_owned(),
        ] {
            let refused = key.verify(&spelling, call);
            assert!(matches!(refused, Err(VerifySignatureError::NotBase64Url)), "{spelling}");
        }
        let bytes = URL_SAFE_NO_PAD.decode(signed).unwrap();
        let mut wrong = vec![Vec::new(), bytes[..31].to_vec(), [&bytes[..], &[0]].concat()];
        for bit in 0..256 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            wrong.push(flipped);
        }
        for bytes in wrong {
            let refused = key.verify(&URL_SAFE_NO_PAD.encode(&bytes), call);
            assert!(matches!(refused, Err(VerifySignatureError::OtherCallOrSecret)), "{bytes:?}");
        }
    }

    #[test]
    fn a_short_secret_is_rejected_and_no_secret_is_shown_or_left_in_memory() {
        for len in [0, 1, 31] {
            assert_eq!(AiSdkSignature::new(&vec![7; len]).unwrap_err(), SecretTooShort { len });
        }
        let key = AiSdkSignature::new(&[b'7'; 32]).unwrap();
        assert_eq!(format!("{key:?}"), "AiSdkSignature([redacted])");
        // An HMAC stores only the states of two hashes, which are derived from its secret.
        fn is_wiped<T: ZeroizeOnDrop>() {}
        is_wiped::<<Sha256 as EagerHash>::Core>();
    }
}
