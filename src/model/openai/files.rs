//! Files of a message, as a model can read them.
//!
//! A file stays in the history. So one that the provider refuses would end the chat, and all that
//! is not known to be taken is told in words.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::model_message::{FileContent, FileSource};

/// Which files a server takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Takes {
    pub(super) images: bool,
    /// PDF.
    pub(super) files: bool,
}

impl Takes {
    pub(super) const ALL: Self = Takes { images: true, files: true };
}

/// A file, as a model can read it.
pub(super) enum Readable {
    /// What it says, or that it is there.
    Text(String),
    /// A picture, by its URL, `data:` if it is here.
    Image(String),
    /// A PDF that is here, as a `data:` URL.
    Pdf(String),
    /// A PDF that is there.
    PdfAt(String),
}

impl Readable {
    pub(super) fn of(file: &FileContent, takes: Takes) -> Self {
        let media_type = essence(&file.media_type);
        let is_image =
            matches!(&*media_type, "image/png" | "image/jpeg" | "image/gif" | "image/webp");
        let (is_image, is_pdf) =
            (takes.images && is_image, takes.files && media_type == "application/pdf");
        let is_text = media_type.starts_with("text/") || media_type == "application/json";
        let readable = match &file.source {
            FileSource::Base64(data) if is_image => Some(Readable::Image(url(&media_type, data))),
            FileSource::Base64(data) if is_pdf => Some(Readable::Pdf(url(&media_type, data))),
            FileSource::Base64(data) if is_text => text(data).map(|text| {
                let (name, text) = (name(file), text.trim_start_matches('\u{feff}'));
                Readable::Text(format!(
                    "(A file of type {media_type}{name}, which says:)\n\n{text}"
                ))
            }),
            FileSource::Url(url) if is_image && is_web(url) => Some(Readable::Image(url.clone())),
            FileSource::Url(url) if is_pdf && is_web(url) => Some(Readable::PdfAt(url.clone())),
            _ => None,
        };
        readable.unwrap_or_else(|| Readable::Text(in_words(file)))
    }
}

/// A file where there is no place for one.
pub(super) fn in_words(file: &FileContent) -> String {
    format!("(A file of type {}{}, which cannot be shown here.)", file.media_type, name(file))
}

fn name(file: &FileContent) -> String {
    file.filename.as_deref().map(|name| format!(" named {name:?}")).unwrap_or_default()
}

/// A media type without its parameters.
fn essence(media_type: &str) -> String {
    media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

fn url(media_type: &str, base64: &str) -> String {
    format!("data:{media_type};base64,{base64}")
}

fn is_web(url: &str) -> bool {
    let scheme = url.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
    matches!(scheme.as_deref(), Some("http" | "https"))
}

fn text(base64: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(base64).ok()?).ok()
}
