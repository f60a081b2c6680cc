//! [`Client`]: what the client of a response can read and answer.

use std::borrow::Cow;

use ui_message_stream::chunk::Version;
use ui_message_stream::message::{ToolState, UiMessage};

/// The settings of a server that describe its clients.
#[derive(Clone)]
pub(crate) struct ClientSettings {
    /// The version of a client that does not say it.
    version: Version,
    /// The name of the header in which a client says its version.
    version_header: Option<Box<str>>,
    has_approvals: bool,
}

impl ClientSettings {
    pub(crate) fn set_version(&mut self, version: Version) {
        self.version = version;
    }

    pub(crate) fn set_version_header(&mut self, name: &str) {
        self.version_header = Some(name.into());
    }

    pub(crate) fn disable_approvals(&mut self) {
        self.has_approvals = false;
    }

    /// Returns the name of the header in which a client says its version.
    #[cfg(feature = "axum")]
    pub(crate) fn version_header(&self) -> Option<&str> {
        self.version_header.as_deref()
    }

    /// Returns the client of a response to no request. If pages send their versions, one of any version may read it.
    pub(crate) fn any_client(&self) -> Client {
        self.client(self.version_header.is_some().then_some(Version::NEWEST))
    }

    /// Returns the client that has said this version.
    pub(crate) fn client(&self, version: Option<Version>) -> Client {
        let version = version.unwrap_or(self.version);
        Client { version, has_approvals: self.has_approvals }
    }
}

impl Default for ClientSettings {
    fn default() -> Self {
        ClientSettings { version: Version::default(), version_header: None, has_approvals: true }
    }
}

/// The client of a response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client {
    version: Version,
    has_approvals: bool,
}

impl Client {
    /// Returns a client of this version that can answer approval requests, if the version knows them.
    pub(crate) fn of_version(version: Version) -> Self {
        Client { version, has_approvals: true }
    }

    /// Returns whether the client can answer approval requests. If not, none may be pending in its
    /// name: the client shows that the call was not executed.
    pub(crate) fn answers_approvals(self) -> bool {
        self.has_approvals && self.version.knows_approvals()
    }

    /// Returns a stored message as it is sent to this client. If the client cannot answer approval
    /// requests, it gets none: another page shows the request, and may still approve the call.
    pub(crate) fn shown(self, message: &UiMessage) -> Cow<'_, UiMessage> {
        match (message.for_version(self.version), self.answers_approvals()) {
            (message, true) => message,
            (message, false) => Cow::Owned(without_open_approvals(message.into_owned())),
        }
    }

    pub(crate) fn version(self) -> Version {
        self.version
    }
}

/// Returns a message for a client that cannot show an approval request: a call that waits for approval is a
/// call without a result.
fn without_open_approvals(mut message: UiMessage) -> UiMessage {
    for part in message.tool_parts_mut() {
        if let ToolState::ApprovalRequested { input, .. } = &part.state {
            part.state = ToolState::InputAvailable { input: input.clone() };
        }
    }
    message
}
