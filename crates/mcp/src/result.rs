//! What a tool of a server returned: an output, or why it failed.

use ::rmcp::model::{CallToolResult, ContentBlock};

use ui_message_stream::agent::Told;
use ui_message_stream::json::Json;
use ui_message_stream::stream::BoxError;

/// The structured content, if there is any; else the text, if there is nothing but text; else the
/// blocks of content as they stand. What the server says of an error is meant to be told, in its
/// first words.
pub(super) fn output(result: CallToolResult) -> Result<Json, BoxError> {
    let texts = result.content.iter().map(|block| block.as_text().map(|text| text.text.as_str()));
    if result.is_error == Some(true) {
        let why = texts.flatten().collect::<Vec<_>>().join("\n");
        let told: String = why.chars().take(MOST_TOLD).collect();
        return Err(match told.trim() {
            "" => "the tool says that it failed, and not why".into(),
            told => Told(told.to_owned()).into(),
        });
    }
    if let Some(structured) = &result.structured_content {
        return Ok(Json::of(structured)?);
    }
    Ok(match texts.collect::<Option<Vec<_>>>() {
        Some(texts) => Json::string(&texts.join("\n")),
        None => Json::of::<[ContentBlock]>(&result.content)?,
    })
}

/// What a model reads of an output in blocks: of pictures and sounds that there is one. As text they
/// would fill its context, and say nothing. `None` of an output without any.
pub(super) fn without_media(output: &Json) -> Option<Json> {
    let blocks: Vec<ContentBlock> = output.to().ok()?;
    let is_media = |block: &ContentBlock| block.as_image().is_some() || block.as_audio().is_some();
    if !blocks.iter().any(is_media) {
        return None;
    }
    let told = blocks.into_iter().map(|block| {
        let media = block.as_image().map(|image| ("image", image.mime_type.clone()));
        let media = media.or_else(|| Some(("sound", block.as_audio()?.mime_type.clone())));
        match media {
            Some((what, kind)) => {
                ContentBlock::text(format!("({what} of type {kind}, which is not shown here)"))
            }
            None => block,
        }
    });
    Json::of(&told.collect::<Vec<_>>()).ok()
}

/// How many characters of an error are told.
const MOST_TOLD: usize = 2000;
