//! Files of a message, as a model can read them.
//!
//! A file stays in the history. So one that the provider refuses would end the chat, and all that
//! is not known to be taken is told in words.

pub(super) use ui_message_stream::adapter::files::placeholder;

use ui_message_stream::adapter::files::{as_text, is_http_url, media_type_essence};
use ui_message_stream::model_message::{FileContent, FileSource};

/// Which files a server takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Takes {
    pub(super) images: bool,
    /// Pictures that are elsewhere, by their address.
    pub(super) image_urls: bool,
    /// PDF.
    pub(super) files: bool,
}

impl Takes {
    pub(super) const ALL: Self = Takes { images: true, image_urls: true, files: true };
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
        let media_type = media_type_essence(&file.media_type);
        let is_image =
            matches!(&*media_type, "image/png" | "image/jpeg" | "image/gif" | "image/webp");
        let (is_image, is_pdf) =
            (takes.images && is_image, takes.files && media_type == "application/pdf");
        match &file.source {
            FileSource::Base64(data) if is_image => Readable::Image(url(&media_type, data)),
            FileSource::Base64(data) if is_pdf => Readable::Pdf(url(&media_type, data)),
            FileSource::Url(url) if is_image && takes.image_urls && is_http_url(url) => {
                Readable::Image(url.clone())
            }
            FileSource::Url(url) if is_pdf && is_http_url(url) => Readable::PdfAt(url.clone()),
            _ => Readable::Text(as_text(file)),
        }
    }
}

fn url(media_type: &str, base64: &str) -> String {
    format!("data:{media_type};base64,{base64}")
}
