//! [`ProviderMetadata`] and [`ToolMetadata`]: JSON whose outer shape the client checks.
//!
//! The client ends the stream over provider metadata that is not an object of objects, and over
//! tool metadata that is not an object. So neither type can hold anything else.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

use crate::id::ToolCallId;
use crate::json::each_field;
#[cfg(feature = "approvals")]
use crate::json::without;
use crate::json::{Json, JsonError};

/// Metadata that a provider expects back with the next request: an object of objects, one per
/// provider.
///
/// ```
/// use ui_message_stream::metadata::ProviderMetadata;
///
/// assert!(ProviderMetadata::parse(r#"{"openai":{"itemId":"msg_1"}}"#).is_ok());
/// assert!(ProviderMetadata::parse(r#"{"openai":"msg_1"}"#).is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ProviderMetadata(Json);

impl ProviderMetadata {
    /// Parses a text and checks its shape.
    ///
    /// # Errors
    /// [`MetadataError`] if the text is not a [`Json`], or not an object of objects.
    pub fn parse(text: &str) -> Result<Self, MetadataError> {
        Self::new(Json::parse(text)?)
    }

    /// Creates metadata from a value, after a check of its shape.
    ///
    /// # Errors
    /// [`MetadataError::Shape`] if the value is not an object of objects, [`MetadataError::Json`]
    /// if it has a key `constructor`, which the client's schema refuses here, or an infinite
    /// number.
    pub fn new(json: Json) -> Result<Self, MetadataError> {
        json.check_as_metadata()?;
        let mut all_objects = true;
        each_field(json.as_str(), |_, value| all_objects &= value.get().starts_with('{'))
            .map_err(|_| MetadataError::Shape)?;
        if all_objects { Ok(ProviderMetadata(json)) } else { Err(MetadataError::Shape) }
    }

    /// Returns the value.
    pub fn as_json(&self) -> &Json {
        &self.0
    }
}

/// The provider metadata of this crate itself, under `ui-message-stream`.
#[derive(Serialize, Deserialize)]
struct Own {
    #[serde(rename = "ui-message-stream")]
    own: OwnFields,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OwnFields {
    tool_call_id: ToolCallId,
}

impl ProviderMetadata {
    /// Adds the id that the model gave to a call, to metadata that may be absent.
    pub(crate) fn with_model_id(metadata: Option<&Self>, id: &ToolCallId) -> Option<Self> {
        let own = serde_json::to_string(&Own { own: OwnFields { tool_call_id: id.clone() } });
        let own = own.ok()?;
        let Some(metadata) = metadata else { return Self::parse(&own).ok() };
        let fields = metadata.0.as_str().trim().strip_prefix('{')?.strip_suffix('}')?;
        match fields.trim() {
            "" => Self::parse(&own).ok(),
            fields => Self::parse(&format!("{{{fields},{}", own.strip_prefix('{')?)).ok(),
        }
    }

    /// Returns the metadata without the id that the model gave to the call: the outer `None` if it
    /// holds none, the inner one if nothing else is left.
    #[cfg(feature = "approvals")]
    pub fn without_model_id(&self) -> Option<Option<Self>> {
        Some(without(&self.0, &["ui-message-stream"])?.map(ProviderMetadata))
    }

    /// Returns the id that the model gave to the call, if the metadata holds one.
    pub fn model_id(&self) -> Option<ToolCallId> {
        self.0.decode::<Own>().ok().map(|Own { own }| own.tool_call_id)
    }
}

/// The metadata of a call that an agent makes inside another call.
#[derive(Serialize, Deserialize)]
struct Inner {
    #[serde(rename = "ui-message-stream-agent")]
    inner: InnerFields,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct InnerFields {
    outer_call_id: ToolCallId,
}

impl ProviderMetadata {
    /// Creates the metadata of a call that is made inside another call: the tool of the outer call is
    /// an agent, and the user has to approve what that agent wants to do. Returns `None` if the id is
    /// not text that JSON can hold.
    ///
    /// ```
    /// use ui_message_stream::metadata::ProviderMetadata;
    ///
    /// let inner = ProviderMetadata::of_inner_call(&"call_1".into()).unwrap();
    /// assert_eq!(inner.outer_call().as_deref(), Some("call_1"));
    /// ```
    pub fn of_inner_call(outer: &ToolCallId) -> Option<Self> {
        let inner = InnerFields { outer_call_id: outer.clone() };
        Self::new(Json::from_serialize(&Inner { inner }).ok()?).ok()
    }

    /// Returns the id of the call inside which this call is made, if it is made inside one.
    pub fn outer_call(&self) -> Option<ToolCallId> {
        // Most calls have none, and the metadata of a provider may be long.
        let is_inner = self.0.as_str().contains("\"ui-message-stream-agent\"");
        let inner = is_inner.then(|| self.0.decode::<Inner>().ok()).flatten();
        inner.map(|Inner { inner }| inner.outer_call_id)
    }
}

/// Metadata of the application about a tool call: an object.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ToolMetadata(Json);

impl ToolMetadata {
    /// Parses a text and checks its shape.
    ///
    /// # Errors
    /// [`MetadataError`] if the text is not a [`Json`], or not an object.
    pub fn parse(text: &str) -> Result<Self, MetadataError> {
        Self::new(Json::parse(text)?)
    }

    /// Creates metadata from a value, after a check of its shape.
    ///
    /// # Errors
    /// [`MetadataError::Shape`] if the value is not an object, [`MetadataError::Json`] if it has a
    /// key `constructor`, which the client's schema refuses here, or an infinite number.
    pub fn new(json: Json) -> Result<Self, MetadataError> {
        json.check_as_metadata()?;
        if json.as_str().trim_start().starts_with('{') {
            Ok(ToolMetadata(json))
        } else {
            Err(MetadataError::Shape)
        }
    }

    /// Returns the value.
    pub fn as_json(&self) -> &Json {
        &self.0
    }
}

/// Why a value is not metadata.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// It is not a [`Json`].
    #[error(transparent)]
    Json(#[from] JsonError),
    /// Provider metadata is an object of objects, tool metadata an object.
    #[error("not an object (of objects, for a provider)")]
    Shape,
}

impl fmt::Debug for ProviderMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Debug for ToolMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl<'de> Deserialize<'de> for ProviderMetadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Json::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for ToolMetadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Json::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}
