//! The scheme of a URL in a file or a source.

/// Returns whether the scheme of a URL is one of these. Upper and lower case are the same.
///
/// A URL without a scheme is relative to a page that the server does not know, and has none of
/// them. Neither has a URL that a browser reads differently from its text: a browser ignores spaces
/// before a URL and line ends inside it.
pub(crate) fn has_scheme<S: AsRef<str>>(url: &str, schemes: &[S]) -> bool {
    url.split_once(':').is_some_and(|(scheme, _)| {
        schemes.iter().any(|allowed| allowed.as_ref().eq_ignore_ascii_case(scheme))
    })
}
