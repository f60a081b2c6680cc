//! Files of a message, in a form that a model can read.
//!
//! A file stays in the history. A file that the provider rejects would make every later request
//! fail. Therefore a file of a type that is not known to be accepted is described as text.

pub(super) use ui_message_stream::model::files::placeholder;

use ui_message_stream::model::files::{as_text, is_http_url, media_type_essence};
use ui_message_stream::model::{FileContent, FileSource};

/// The kinds of files that a server accepts.
#[derive(Debug, Clone, Copy)]
pub(super) struct SupportedFiles {
    pub(super) images: bool,
    /// Images that are given by their URL.
    pub(super) image_urls: bool,
    /// PDF.
    pub(super) files: bool,
}

impl SupportedFiles {
    pub(super) const ALL: Self = SupportedFiles { images: true, image_urls: true, files: true };
}

/// Defines the methods that every model has for its field `supported_files`.
macro_rules! file_settings {
    () => {
        /// Replaces PDFs with a sentence that names the file, for servers that do not accept them.
        /// Most servers other than OpenAI's do not.
        #[must_use]
        pub fn without_files(mut self) -> Self {
            self.supported_files.files = false;
            self
        }

        /// Replaces images with a sentence that names the file, for models that read only text.
        #[must_use]
        pub fn without_images(mut self) -> Self {
            self.supported_files.images = false;
            self
        }

        /// Replaces images that are given by URL with a sentence that names the file, for servers that
        /// do not fetch images, such as Ollama.
        #[must_use]
        pub fn without_image_urls(mut self) -> Self {
            self.supported_files.image_urls = false;
            self
        }
    };
}
pub(super) use file_settings;

/// A file in a form that a model can read.
pub(super) enum ReadableFile {
    /// The content of a text file, or a sentence that names the file.
    Text(String),
    /// The URL of an image, or a `data:` URL with its data.
    Image(String),
    /// A `data:` URL with the data of a PDF.
    Pdf(String),
    /// The URL of a PDF.
    PdfUrl(String),
}

impl ReadableFile {
    pub(super) fn new(file: &FileContent, supported_files: SupportedFiles) -> Self {
        let media_type = media_type_essence(&file.media_type);
        let is_image =
            matches!(&*media_type, "image/png" | "image/jpeg" | "image/gif" | "image/webp");
        let is_image = supported_files.images && is_image;
        let is_pdf = supported_files.files && media_type == "application/pdf";
        match &file.source {
            FileSource::Base64(data) if is_image => ReadableFile::Image(url(&media_type, data)),
            FileSource::Base64(data) if is_pdf => ReadableFile::Pdf(url(&media_type, data)),
            FileSource::Url(url) if is_image && supported_files.image_urls && is_http_url(url) => {
                ReadableFile::Image(url.clone())
            }
            FileSource::Url(url) if is_pdf && is_http_url(url) => ReadableFile::PdfUrl(url.clone()),
            _ => ReadableFile::Text(as_text(file)),
        }
    }
}

fn url(media_type: &str, base64: &str) -> String {
    format!("data:{media_type};base64,{base64}")
}
