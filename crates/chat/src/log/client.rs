//! [`Client`]: what the client of a response can read and answer.

use std::borrow::Cow;
use std::sync::Arc;

use ui_message_stream::chunk::Version;
use ui_message_stream::message::{ToolState, UiMessage};
use ui_message_stream::request::ChatRequest;

/// The settings of a server that describe its clients.
#[derive(Clone)]
pub(crate) struct ClientSettings {
    version_of: Arc<VersionOf>,
    /// The version of a client that sends no chat request.
    any_version: Version,
    has_approvals: bool,
}

type VersionOf = dyn Fn(&ChatRequest) -> Version + Send + Sync;

impl ClientSettings {
    pub(crate) fn set_version(&mut self, version: Version) {
        self.set_version_of(move |_| version);
        self.any_version = version;
    }

    pub(crate) fn set_version_of(
        &mut self,
        version_of: impl Fn(&ChatRequest) -> Version + Send + Sync + 'static,
    ) {
        self.version_of = Arc::new(version_of);
    }

    pub(crate) fn disable_approvals(&mut self) {
        self.has_approvals = false;
    }

    /// Returns the client that sent this request.
    pub(crate) fn client_of(&self, request: &ChatRequest) -> Client {
        Client { version: (self.version_of)(request), has_approvals: self.has_approvals }
    }

    /// Returns the client of a response to no request.
    pub(crate) fn any_client(&self) -> Client {
        Client { version: self.any_version, has_approvals: self.has_approvals }
    }
}

impl Default for ClientSettings {
    fn default() -> Self {
        let any_version = Version::default();
        ClientSettings {
            version_of: Arc::new(move |_| any_version),
            any_version,
            has_approvals: true,
        }
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
        match self.answers_approvals() {
            true => Cow::Borrowed(message),
            false => Cow::Owned(without_open_approvals(message.clone())),
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
