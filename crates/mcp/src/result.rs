//! Converts the result of a tool of a server into an output or an error.

use ::rmcp::model::{CallToolResult, ContentBlock};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use ui_message_stream::BoxError;
use ui_message_stream::json::Json;
use ui_message_stream_agent::ToolError;

/// The output of a result that has structured content and other content beside it, as the protocol
/// names them. `content` is as it would be alone.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StructuredAndContent {
    structured_content: Json,
    content: Json,
}

/// Returns the text if all blocks are text, and otherwise the content blocks unchanged. If there is
/// structured content, returns it alone or, if the blocks say more than it, both.
///
/// # Errors
/// The error text of the server as a [`ToolError`], because the protocol intends it for the model.
/// Another error if the text is empty or the result cannot be written as JSON.
pub(super) fn output(result: CallToolResult) -> Result<Json, BoxError> {
    let CallToolResult { content, structured_content, is_error, .. } = result;
    if is_error == Some(true) {
        let texts = content.iter().filter_map(text).collect::<Vec<_>>().join("\n");
        return Err(error(&texts, "the tool says that it failed, and not why"));
    }
    // Some servers write `null` for no structured content.
    let is_structured = |value: &Value| !value.is_null() || content.is_empty();
    let Some(structured) = structured_content.filter(is_structured) else {
        return content_output(&content);
    };
    let content = without_repetition(content, &structured);
    let structured_content = Json::from_serialize(&structured)?;
    if content.is_empty() {
        return Ok(structured_content);
    }
    let content = content_output(&content)?;
    Ok(Json::from_serialize(&StructuredAndContent { structured_content, content })?)
}

/// Returns the error text of a server for the model and the user, cut to 2000 characters. If it is
/// empty, returns an error for the log.
pub(super) fn error(text: &str, if_empty: &'static str) -> BoxError {
    let message: String = text.chars().take(MAX_ERROR_CHARS).collect();
    match message.trim() {
        "" => if_empty.into(),
        message => ToolError(message.to_owned()).into(),
    }
}

fn content_output(content: &[ContentBlock]) -> Result<Json, BoxError> {
    Ok(match content.iter().map(text).collect::<Option<Vec<_>>>() {
        Some(texts) => Json::string(&texts.join("\n")),
        None => Json::from_serialize(content)?,
    })
}

fn text(block: &ContentBlock) -> Option<&str> {
    block.as_text().map(|text| text.text.as_str())
}

/// Leaves out the texts that only repeat the structured content. The protocol asks a server to send
/// its JSON as a text too, for clients that do not know it.
///
/// A server that makes an object of a value, because structured content was to be one, has that value
/// alone in the text, and of a list each item in a text of its own.
fn without_repetition(mut content: Vec<ContentBlock>, structured: &Value) -> Vec<ContentBlock> {
    let fields = structured.as_object().filter(|fields| fields.len() == 1);
    let wrapped = fields.and_then(|fields| fields.values().next());
    let values = [Some(structured), wrapped];
    let texts: Vec<&str> = content.iter().filter_map(text).collect();
    let is_each_item = |items: &Vec<Value>| {
        items.len() == texts.len() && texts.iter().zip(items).all(|(text, item)| is(text, item))
    };
    let are_items = values.into_iter().flatten().filter_map(Value::as_array).any(is_each_item);
    let is_repetition =
        |text: &str| are_items || values.into_iter().flatten().any(|value| is(text, value));
    content.retain(|block| !text(block).is_some_and(is_repetition));
    content
}

/// Returns whether a text is this value, or its JSON.
fn is(text: &str, value: &Value) -> bool {
    value.as_str() == Some(text) || text.parse().is_ok_and(|parsed: Value| parsed == *value)
}

/// Returns an output in which a text replaces each image and each sound of its content. The text
/// says that there is one. As base64 text they would fill the context of the model without being
/// readable.
///
/// Returns `None` if the output has no image and no sound.
pub(super) fn without_media(output: &Json) -> Option<Json> {
    // A list of two could be read as the two fields.
    if !output.is_object() {
        return content_without_media(output);
    }
    let both: StructuredAndContent = output.decode().ok()?;
    let content = content_without_media(&both.content)?;
    Json::from_serialize(&StructuredAndContent { content, ..both }).ok()
}

fn content_without_media(content: &Json) -> Option<Json> {
    let blocks: Vec<ContentBlock> = content.decode().ok()?;
    let is_media = |block: &ContentBlock| block.as_image().is_some() || block.as_audio().is_some();
    if !blocks.iter().any(is_media) {
        return None;
    }
    let blocks = blocks.into_iter().map(|block| {
        let media = block.as_image().map(|image| ("image", image.mime_type.clone()));
        let media = media.or_else(|| Some(("sound", block.as_audio()?.mime_type.clone())));
        match media {
            Some((what, kind)) => {
                ContentBlock::text(format!("({what} of type {kind}, which is not shown here)"))
            }
            None => block,
        }
    });
    Json::from_serialize(&blocks.collect::<Vec<_>>()).ok()
}

/// The maximum number of characters of an error text that are shown.
const MAX_ERROR_CHARS: usize = 2000;
