//! Files of a message, as text for models that do not accept the files themselves.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::message::has_scheme;
use crate::model::{FileContent, FileSource};

/// Returns the content of a text file after a line that describes the file. Returns the
/// [`placeholder`] for any other file.
///
/// A text file has the media type `text/*` or `application/json`, and its data is in the message as
/// Base64 of UTF-8.
pub fn as_text(file: &FileContent) -> String {
    let media_type = media_type_essence(&file.media_type);
    let is_text = media_type.starts_with("text/") || media_type == "application/json";
    let text = match &file.source {
        FileSource::Base64(data) if is_text => decode(data),
        _ => None,
    };
    text.map_or_else(
        || placeholder(file),
        |text| {
            let name = name(file);
            let text = text.trim_start_matches('\u{feff}');
            format!("(A file of type {media_type}{name}, which says:)\n\n{text}")
        },
    )
}

/// Returns a sentence that replaces a file which cannot be sent to the model.
pub fn placeholder(file: &FileContent) -> String {
    format!("(A file of type {}{}, which cannot be shown here.)", file.media_type, name(file))
}

/// Returns a media type without its parameters, in lower case, and an image by the name that is registered: some
/// browsers and systems use others.
///
/// ```
/// use ui_message_stream::model::files::media_type_essence;
///
/// assert_eq!(media_type_essence("Text/HTML; charset=utf-8"), "text/html");
/// assert_eq!(media_type_essence("image/jpg"), "image/jpeg");
/// ```
pub fn media_type_essence(media_type: &str) -> String {
    let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match &*essence {
        "image/jpg" | "image/pjpeg" => "image/jpeg".to_owned(),
        "image/x-png" => "image/png".to_owned(),
        _ => essence,
    }
}

/// Whether the scheme of a URL is `http` or `https`, so that a provider can fetch it.
pub fn is_http_url(url: &str) -> bool {
    has_scheme(url, &["http", "https"])
}

fn name(file: &FileContent) -> String {
    file.filename.as_deref().map(|name| format!(" named {name:?}")).unwrap_or_default()
}

fn decode(base64: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(base64).ok()?).ok()
}
