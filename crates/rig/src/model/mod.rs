//! [`RigModel`]: the completion models of [rig](https://docs.rs/rig-core/0.44) 0.44, so all of its
//! providers.
//!
//! rig speaks with the provider; which HTTP client it does that with is the host's choice. For an
//! agent that was built with rig there is [`RigAgent`](crate::RigAgent).
//!
//! A failure of the provider is an error of the stream: it goes to `tracing`, and the person reads
//! that something went wrong. It repeats what rig says of it, which may repeat what the provider
//! says.

mod provider_tools;
mod provider_state;
mod messages;
mod strip_sent_approvals;
mod stream_parts;
mod response_stream;

use std::fmt;
use std::sync::Arc;

use rig_core::DynModel;
use rig_core::completion::{CompletionRequest, ToolDefinition};
use rig_core::message::{Message, ToolName};
use rig_core::operation::Completion;

pub(crate) use self::messages::messages;
pub(crate) use self::provider_tools::{awaited, question};
pub(crate) use self::response_stream::finish_reason;
pub(crate) use self::stream_parts::{Ended, MadeCall, Parts, fresh_id};
pub(crate) use self::strip_sent_approvals::once_told;

use self::response_stream::Reply;
use ui_message_stream::agent::{Model, ModelRequest, ModelStream, ToolDescription};

/// A completion model of rig.
///
/// ```
/// use rig_core::http_client::DynHttpClient;
/// use rig_core::providers::anthropic::AnthropicConfig;
/// use ui_message_stream::agent::Agent;
/// use ui_message_stream_rig::RigModel;
///
/// fn agent(key: &str, http: DynHttpClient) -> Agent {
///     let claude = AnthropicConfig::new(key).connect(http).completion("claude-sonnet-4-5");
///     Agent::new(RigModel::new(claude).with_request(|request| request.max_tokens(4096)))
/// }
/// ```
///
/// What a provider wants back is kept as provider metadata in the messages: the signatures and the
/// encrypted text of thoughts, its own ids of calls, and what its own tools did; what is no part of
/// the message, on a part of reasoning without words. It goes back to the very model that said it, as
/// it was; to another one rig sends the words alone. What is larger than 1 MiB does not go back.
///
/// Tools that the provider runs are shown with what came of them: those of OpenAI's Responses, as
/// `ui_message_stream_openai::Responses` shows them, and of Anthropic's Messages. Of others the provider is told
/// what it said, and nobody else. Where OpenAI asks before it runs a tool of a tool server, the person
/// is asked, and the provider is told the answer with the next request. While code that Anthropic runs
/// waits for an approved tool of yours, a client does not go on by itself: it has to send the answer.
/// What a client of OpenAI is to run and rig does not know (its computer, its shell, the search for
/// tools) is not shown, and nobody answers it.
///
/// What an answer is to look like, rig tells some providers only once a tool has answered, and some
/// not at all: there the instructions have to.
///
/// What rig takes for a failed answer is one: filtered content, and an end that the provider gives
/// no reason for where its interface has one. None of its calls runs.
#[derive(Clone)]
pub struct RigModel {
    model: DynModel<Completion>,
    shape: Option<Arc<Shape>>,
}

type Shape = dyn Fn(CompletionRequest) -> CompletionRequest + Send + Sync;

impl RigModel {
    /// This model: a `Model` of rig, or one that was erased.
    pub fn new(model: impl Into<DynModel<Completion>>) -> Self {
        RigModel { model: model.into(), shape: None }
    }

    /// Lets each request pass through here before it is sent: for a temperature, a limit of tokens,
    /// how much the model reasons, tools that the provider runs. A later one takes the place of an
    /// earlier one.
    #[must_use]
    pub fn with_request(
        mut self,
        shape: impl Fn(CompletionRequest) -> CompletionRequest + Send + Sync + 'static,
    ) -> Self {
        self.shape = Some(Arc::new(shape));
        self
    }

    fn request(&self, request: &ModelRequest) -> CompletionRequest {
        let instructions = request.instructions.as_deref().map(Message::system);
        let said = messages(&request.messages);
        let history: Vec<Message> = instructions.into_iter().chain(said).collect();
        let mut shaped = CompletionRequest::from(history);
        shaped.tools = request.tools.iter().filter_map(tool).collect();
        // A schema that cannot be read was refused when the agent was made.
        shaped.output_schema = request.output.as_ref().and_then(|output| output.schema.to().ok());
        match &self.shape {
            Some(shape) => shape(shaped),
            None => shaped,
        }
    }
}

impl Model for RigModel {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let awaited = awaited(&request.messages);
        Box::pin(Reply::of(self.model.stream(self.request(&request)), awaited))
    }

    fn name(&self) -> Option<&str> {
        self.model.id()
    }
}

impl fmt::Debug for RigModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RigModel").field("model", &self.model).finish_non_exhaustive()
    }
}

fn tool(tool: &ToolDescription) -> Option<ToolDefinition> {
    let name = ToolName::new(&*tool.name).ok()?;
    // A schema that cannot be read was refused when the agent was made.
    let parameters = tool.input_schema.to().unwrap_or_default();
    Some(ToolDefinition::new(name, &*tool.description, parameters))
}
