//! [`RigModel`]: the completion models of [rig](https://docs.rs/rig-core/0.44) 0.44, and therefore
//! all providers that rig supports.
//!
//! rig communicates with the provider, and the host chooses the HTTP client. For an agent that was
//! built with rig, use [`RigAgent`](crate::RigAgent).
//!
//! A failure of the provider is an error of the stream. The error is logged with `tracing`, and the
//! user sees a general message. The error repeats rig's message, which may repeat the provider's.

mod provider_tools;
mod provider_state;
mod messages;
mod strip_sent_approvals;
mod stream_parts;
mod unread;
mod finish_reasons;
mod response_stream;

use std::fmt;
use std::sync::Arc;

use rig_core::DynModel;
use rig_core::completion::{CompletionRequest, ToolDefinition};
use rig_core::message::{Message, ToolName};
use rig_core::observe::{AdapterContext, Subject};
use rig_core::operation::Completion;

pub(crate) use self::messages::messages;
pub(crate) use self::provider_tools::{awaited_calls, provider_approval_call};
pub(crate) use self::response_stream::{finish_reason, is_complete};
pub(crate) use self::stream_parts::{CallRequest, ModelCall, PartReader, fresh_id};
pub(crate) use self::strip_sent_approvals::strip_sent_approvals;

use self::finish_reasons::FinishReasons;
use self::response_stream::ResponseStream;
use ui_message_stream::model::{self, Model, ModelRequest, ModelStream};

/// A completion model of rig.
///
/// ```
/// use rig_core::http_client::DynHttpClient;
/// use rig_core::providers::anthropic::AnthropicConfig;
/// use ui_message_stream_agent::Agent;
/// use ui_message_stream_rig::RigModel;
///
/// fn agent(key: &str, http: DynHttpClient) -> Agent {
///     let claude = AnthropicConfig::new(key).connect(http).completion("claude-sonnet-4-5");
///     Agent::new(RigModel::new(claude).map_request(|request| request.max_tokens(4096)))
/// }
/// ```
///
/// # Provider state
///
/// State that a provider needs back is stored as provider metadata in the messages: the signatures
/// and the encrypted text of reasoning, the provider's ids of calls, and the items of its own
/// tools. State without a part of its own is stored in an empty reasoning part. State is sent back
/// unchanged, and only to the model that produced it; rig sends only the text to other models.
/// State larger than 1 MiB is not sent back.
///
/// # Tools of the provider
///
/// Tools that the provider executes are shown with their results if they are tools of OpenAI's
/// Responses API, which appear as with `ui_message_stream_openai::Responses`, or of Anthropic's
/// Messages API. The items of other such tools are sent back to the provider but not shown. If
/// OpenAI requests approval before it executes a tool of an MCP server, the user is asked, and the
/// next request sends the approval response to the provider. While code that Anthropic executes
/// waits for an approved tool of the host, a client does not continue automatically: it must send
/// the approval response. Tools that OpenAI's client must execute and rig does not support
/// (computer use, shell, tool search) are not shown, and their calls get no result.
///
/// # Structured output
///
/// rig sends the output schema to some providers only after a tool has returned a result, and to
/// some providers never. For these, describe the format in the instructions.
///
/// # Failed responses
///
/// A response that rig treats as failed is an error: filtered content, and an end for which the
/// provider gives no reason although its API has a field for it. None of its calls is executed. A
/// response without an answer that reached the token limit ends with that reason.
///
/// The README lists which streams of compatible servers rig reads in another way than
/// `ui_message_stream_openai`.
#[derive(Clone)]
pub struct RigModel {
    model: DynModel<Completion>,
    map_request: Option<Arc<MapRequest>>,
}

type MapRequest = dyn Fn(CompletionRequest) -> CompletionRequest + Send + Sync;

impl RigModel {
    /// Creates an adapter for a rig `Model`, typed or type-erased.
    pub fn new(model: impl Into<DynModel<Completion>>) -> Self {
        RigModel { model: model.into(), map_request: None }
    }

    /// Sets a function that changes each request before it is sent, for example to set a
    /// temperature, a token limit, the reasoning effort, or tools that the provider executes. It
    /// replaces an earlier function.
    #[must_use]
    pub fn map_request(
        mut self,
        map_request: impl Fn(CompletionRequest) -> CompletionRequest + Send + Sync + 'static,
    ) -> Self {
        self.map_request = Some(Arc::new(map_request));
        self
    }

    fn request(&self, request: &ModelRequest) -> CompletionRequest {
        let instructions = request.instructions.as_deref().map(Message::system);
        let conversation = messages(&request.messages);
        let history: Vec<Message> = instructions.into_iter().chain(conversation).collect();
        let mut converted = CompletionRequest::from(history);
        converted.tools = request.tools.iter().filter_map(tool).collect();
        // Creating the agent fails if a schema cannot be read.
        converted.output_schema =
            request.output.as_ref().and_then(|output| output.schema.decode().ok());
        match &self.map_request {
            Some(map_request) => map_request(converted),
            None => converted,
        }
    }
}

impl Model for RigModel {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let awaited_calls = awaited_calls(&request.messages);
        let reasons = Arc::new(FinishReasons::default());
        let context =
            AdapterContext::new(Arc::clone(&reasons) as _, Subject::default(), "response");
        let answer = self.model.stream_observed(self.request(&request), context);
        Box::pin(ResponseStream::new(answer, awaited_calls, reasons))
    }

    fn name(&self) -> Option<&str> {
        self.model.id()
    }
}

impl fmt::Debug for RigModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RigModel").field("model", &self.model.id()).finish_non_exhaustive()
    }
}

fn tool(tool: &model::ToolDefinition) -> Option<ToolDefinition> {
    let name = ToolName::new(&*tool.name).ok()?;
    // No agent has a tool that no provider accepts.
    let parameters = tool.parameters()?.decode().ok()?;
    Some(ToolDefinition::new(name, &*tool.description, parameters))
}
