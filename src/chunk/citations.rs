//! [`Citations`]: what a text rests on, as JSON whose shape the client checks.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::json::{FieldError, Json, JsonError, Object};
use crate::metadata::ProviderMetadata;

/// The sources that a text rests on: an array of
/// `{"source": {…}, "startIndex"?, "endIndex"?, "citedText"?}`, as clients from `ai@7.0.138` on show it.
///
/// A source is of a web page, `{"type": "source", "sourceType": "url", "id", "url", "title"?}`, or of a document,
/// `{"type": "source", "sourceType": "document", "id", "mediaType", "title", "filename"?}`, and may have
/// `providerMetadata`. The indexes count the UTF-16 units of the text. The client drops other fields, and so does
/// this type. The client refuses the whole stream over another shape; this type cannot hold one.
///
/// An agent sends it as [`AgentEvent::Chunk`](crate::AgentEvent::Chunk) with a `text-end`, and the host sets
/// `Version::V7Patch(138)` or a later version.
///
/// ```
/// use ui_message_stream::chunk::Citations;
///
/// let source = r#"{"type":"source","sourceType":"url","id":"s1","url":"https://a.example"}"#;
/// let citations = Citations::parse(&format!(r#"[{{"source":{source},"startIndex":0,"endIndex":4}}]"#));
/// assert!(citations.is_ok());
/// let error = Citations::parse(&format!(r#"[{{"source":{source},"startIndex":-1}}]"#)).unwrap_err();
/// assert_eq!(error.to_string(), "[0].startIndex: expected a whole number that is not negative");
/// ```
///
/// Source: `citationSchema` of `ai@7.0.173`.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Citations(Json);

impl Citations {
    /// Parses a text and checks its shape.
    ///
    /// # Errors
    /// [`CitationsError`] if the text is not a [`Json`], or not an array of citations.
    pub fn parse(text: &str) -> Result<Self, CitationsError> {
        Self::new(Json::parse(text)?)
    }

    /// Creates citations from a value, after a check of its shape.
    ///
    /// # Errors
    /// [`CitationsError::Shape`] names the first field that the client refuses.
    pub fn new(json: Json) -> Result<Self, CitationsError> {
        let items: Result<Vec<&RawValue>, _> = serde_json::from_str(json.as_str());
        let items = items.map_err(|_| FieldError::new("", "expected an array of citations"))?;
        let mut citations = Vec::with_capacity(items.len());
        for (at, item) in items.into_iter().enumerate() {
            citations.push(citation(item).map_err(|error| error.within(&format!("[{at}]")))?);
        }
        Ok(Citations(Json::from_serialize(&citations).map_err(CitationsError::Json)?))
    }

    /// Returns the value.
    pub fn as_json(&self) -> &Json {
        &self.0
    }
}

/// Reads a citation with the fields that the client keeps, in its order.
fn citation(item: &RawValue) -> Result<Fields, FieldError> {
    let mut object = object_of(item)?;
    let mut fields = Fields::default();
    let source = object.take("source").ok_or(FieldError::missing("source"))?;
    fields.add("source", source_of(source).map_err(|error| error.within("source"))?);
    for key in ["startIndex", "endIndex"] {
        if let Some(index) = object.take(key) {
            fields.0.push((key, index_of(index).ok_or(FieldError::expected(key, INDEX))?));
        }
    }
    fields.add_text("citedText", object.text_if_any("citedText")?);
    Ok(fields)
}

fn source_of(source: &RawValue) -> Result<Fields, FieldError> {
    let mut object = object_of(source)?;
    if object.text("type")? != "source" {
        return Err(FieldError::expected("type", "`source`"));
    }
    let kind = object.text("sourceType")?;
    let (required, optional) = match &*kind {
        "url" => (&["id", "url"][..], "title"),
        "document" => (&["id", "mediaType", "title"][..], "filename"),
        _ => return Err(FieldError::expected("sourceType", "`url` or `document`")),
    };
    let mut fields = Fields::default();
    fields.add_text("type", Some("source".into()));
    fields.add_text("sourceType", Some(kind));
    for key in required {
        fields.add_text(key, Some(object.text(key)?));
    }
    fields.add_text(optional, object.text_if_any(optional)?);
    if let Some(raw) = object.take("providerMetadata") {
        let key = "providerMetadata";
        let json = Json::received(raw).map_err(|error| FieldError::json(key, &error))?;
        let metadata =
            ProviderMetadata::new(json).map_err(|error| FieldError::json(key, &error))?;
        fields.0.push((key, metadata.as_json().clone()));
    }
    Ok(fields)
}

fn object_of(raw: &RawValue) -> Result<Object<'_>, FieldError> {
    Object::parse(raw.get()).map_err(|_| FieldError::new("", "expected an object"))
}

/// Returns an index, if it is one: in JavaScript `4.0` is a whole number.
fn index_of(raw: &RawValue) -> Option<Json> {
    let number: f64 = serde_json::from_str(raw.get()).ok()?;
    let is_index = number >= 0.0 && number.fract() == 0.0 && number <= MAX_SAFE_INTEGER;
    is_index.then(|| Json::received(raw).ok()).flatten()
}

/// The fields of an object, in their order.
#[derive(Default)]
struct Fields(Vec<(&'static str, Json)>);

impl Fields {
    fn add(&mut self, key: &'static str, value: Fields) {
        // Its values are JSON.
        self.0.extend(Json::from_serialize(&value).ok().map(|value| (key, value)));
    }

    fn add_text(&mut self, key: &'static str, text: Option<Cow<'_, str>>) {
        self.0.extend(text.map(|text| (key, Json::string(&text))));
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

/// What an index is.
const INDEX: &str = "a whole number that is not negative";

/// The largest number of which JavaScript knows each smaller one.
const MAX_SAFE_INTEGER: f64 = 9_007_199_254_740_991.0;

/// Why a value is no list of citations.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CitationsError {
    /// It is not a [`Json`].
    #[error(transparent)]
    Json(#[from] JsonError),
    /// A field is missing or of a wrong type.
    #[error(transparent)]
    Shape(#[from] FieldError),
}

impl fmt::Debug for Citations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl<'de> Deserialize<'de> for Citations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Json::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn citations_have_the_shape_that_the_client_reads() {
        let url = r#"{"id":"s","sourceType":"url","type":"source","url":"u","later":1}"#;
        let document = r#"{"type":"source","sourceType":"document","id":"s","mediaType":"m","title":"t","providerMetadata":{"p":{}}}"#;
        let of = |source: &str, rest: &str| format!(r#"[{{"source":{source}{rest}}}]"#);
        let read = Citations::parse(&of(url, r#","later":2,"citedText":"c","endIndex":4.0"#));
        assert_eq!(
            read.unwrap().as_json().as_str(),
            r#"[{"source":{"type":"source","sourceType":"url","id":"s","url":"u"},"endIndex":4.0,"citedText":"c"}]"#
        );
        assert_eq!(
            Citations::parse(&of(document, "")).unwrap().as_json().as_str(),
            of(document, "")
        );
        for (wrong, error) in [
            ("{}".to_owned(), "expected an array of citations"),
            ("[1]".to_owned(), "[0]: expected an object"),
            ("[{}]".to_owned(), "[0].source: missing"),
            (of("{}", ""), "[0].source.type: missing"),
            (
                of(r#"{"type":"source","sourceType":"book"}"#, ""),
                "[0].source.sourceType: expected `url` or `document`",
            ),
            (of(r#"{"type":"source","sourceType":"url","id":"s"}"#, ""), "[0].source.url: missing"),
            (
                of(url, r#","startIndex":null"#),
                "[0].startIndex: expected a whole number that is not negative",
            ),
            (
                of(url, r#","endIndex":1.5"#),
                "[0].endIndex: expected a whole number that is not negative",
            ),
            (of(url, r#","citedText":null"#), "[0].citedText: expected a string"),
        ] {
            assert_eq!(Citations::parse(&wrong).unwrap_err().to_string(), error, "{wrong}");
        }
    }
}
