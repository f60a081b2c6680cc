//! Converts the result of a tool of a server into an output or an error.

use ::rmcp::model::{CallToolResult, ContentBlock};

use ui_message_stream::BoxError;
use ui_message_stream::json::Json;
use ui_message_stream_agent::ToolError;

/// Returns the structured content if there is any; the text if all blocks are text; otherwise the
/// content blocks unchanged.
///
/// # Errors
/// The error text of the server as a [`ToolError`], because the protocol intends it for the model.
/// Another error if the text is empty or the result cannot be written as JSON.
pub(super) fn output(result: CallToolResult) -> Result<Json, BoxError> {
    let texts = result.content.iter().map(|block| block.as_text().map(|text| text.text.as_str()));
    if result.is_error == Some(true) {
        let texts = texts.flatten().collect::<Vec<_>>().join("\n");
        return Err(error(&texts, "the tool says that it failed, and not why"));
    }
    if let Some(structured) = &result.structured_content {
        return Ok(Json::from_serialize(structured)?);
    }
    Ok(match texts.collect::<Option<Vec<_>>>() {
        Some(texts) => Json::string(&texts.join("\n")),
        None => Json::from_serialize::<[ContentBlock]>(&result.content)?,
    })
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

/// Returns an output of content blocks in which a text replaces each image and each sound. The text
/// says that there is one. As base64 text they would fill the context of the model without being
/// readable.
///
/// Returns `None` if the output has no image and no sound.
pub(super) fn without_media(output: &Json) -> Option<Json> {
    let blocks: Vec<ContentBlock> = output.decode().ok()?;
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
