//! Files of a message, as both requests take them.

use crate::model_message::{FileContent, FileSource};

/// A file as a URL, `data:` if it is here.
pub(super) fn url(media_type: &str, source: &FileSource) -> String {
    match source {
        FileSource::Url(url) => url.clone(),
        FileSource::Base64(data) => format!("data:{media_type};base64,{data}"),
    }
}

/// A file where there is no place for one.
pub(super) fn in_words(file: &FileContent) -> String {
    let name = file.filename.as_deref().map(|name| format!(" named {name:?}")).unwrap_or_default();
    format!("(A file of type {}{name}, which cannot be shown here.)", file.media_type)
}
