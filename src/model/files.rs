//! Files of a message, for those who cannot be shown them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::model_message::{FileContent, FileSource};

/// What a file says, if it is a text that is here, or that it is there.
pub(super) fn told(file: &FileContent) -> String {
    let media_type = essence(&file.media_type);
    let is_text = media_type.starts_with("text/") || media_type == "application/json";
    let text = match &file.source {
        FileSource::Base64(data) if is_text => text(data),
        _ => None,
    };
    text.map_or_else(
        || in_words(file),
        |text| {
            let (name, text) = (name(file), text.trim_start_matches('\u{feff}'));
            format!("(A file of type {media_type}{name}, which says:)\n\n{text}")
        },
    )
}

/// A file where there is no place for one.
pub(super) fn in_words(file: &FileContent) -> String {
    format!("(A file of type {}{}, which cannot be shown here.)", file.media_type, name(file))
}

/// A media type without its parameters.
pub(super) fn essence(media_type: &str) -> String {
    media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Whether a provider can fetch what is there.
pub(super) fn is_web(url: &str) -> bool {
    let scheme = url.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
    matches!(scheme.as_deref(), Some("http" | "https"))
}

fn name(file: &FileContent) -> String {
    file.filename.as_deref().map(|name| format!(" named {name:?}")).unwrap_or_default()
}

fn text(base64: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(base64).ok()?).ok()
}
