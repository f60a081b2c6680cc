//! [`AgentRun`]: a turn under way. It begins what the [`Run`] asks for, and hands back what comes of it.

use std::collections::VecDeque;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready as poll_ready};

use futures_core::Stream;
use tracing::{Span, field};

use super::Agent;
use super::model::{ModelInputs, ModelRequest, failed};
use super::output::Output;
use super::tool_run::Once;
use super::tools::Tools;
use super::transcript::Transcript;
use crate::adapter::tools::prior_usage;
use crate::approval::OpenCall;
use crate::approvals::AskError;
use crate::chat::Turn;
use crate::event::AgentEvent;
use crate::id::ToolCallId;
use crate::message::UiMessage;
use crate::run::{Errand, Input, Run, Step, ToolEvent, Usage};
use crate::stream::BoxError;

/// What an errand brings, as it comes.
pub(super) type Inputs = Pin<Box<dyn Stream<Item = Input> + Send>>;

/// One turn under way.
pub(super) struct AgentRun {
    agent: Agent,
    tools: Tools,
    run: Run,
    turn: Arc<Turn>,
    transcript: Transcript,
    errands: VecDeque<Inputs>,
    /// Named after the conventions of OpenTelemetry for generative AI; without any content.
    span: Span,
    /// The step within it.
    step: Span,
}

impl AgentRun {
    /// What an agent says in a turn.
    pub(super) fn of(agent: Agent, turn: Turn) -> Self {
        let run = Run::new(agent.0.most_steps).with_calls(calls_of(&turn));
        let run = if agent.0.output.is_some() { run.checking_output() } else { run };
        let run = if agent.0.tells_usage { run.telling_usage(prior_usage(&turn)) } else { run };
        // What the request brings was checked before it was taken.
        let tools = agent.tools_of(turn.request.as_deref());
        AgentRun {
            tools: tools.unwrap_or_else(|_| agent.0.tools.clone()),
            run,
            span: tracing::info_span!(
                "invoke_agent",
                gen_ai.operation.name = "invoke_agent",
                gen_ai.provider.name = agent.0.model.provider(),
                gen_ai.conversation.id = turn.chat.id.as_str(),
                gen_ai.usage.input_tokens = field::Empty,
                gen_ai.usage.output_tokens = field::Empty,
                otel.status_code = field::Empty,
                error.type = field::Empty,
            ),
            step: Span::none(),
            transcript: Transcript::of(&turn),
            turn: Arc::new(turn),
            errands: VecDeque::new(),
            agent,
        }
    }

    /// Begins an errand. What is decided about a call is heard before the model goes on, so that it
    /// stands beside the call.
    fn begin(&mut self, errand: Errand) {
        if let Errand::CallModel { step } = errand {
            self.step = tracing::info_span!(parent: &self.span, "step", step);
        }
        let _entered = self.step.clone().entered();
        let is_decision = matches!(errand, Errand::Check(_) | Errand::Prepare(_) | Errand::Ask(_));
        let inputs = self.inputs(errand);
        match is_decision {
            true => self.errands.push_front(inputs),
            false => self.errands.push_back(inputs),
        }
    }

    /// What an errand brings.
    fn inputs(&mut self, errand: Errand) -> Inputs {
        let AgentRun { agent, tools, turn, transcript, .. } = self;
        let agent = &agent.0;
        match errand {
            Errand::CallModel { step } => {
                let request = ModelRequest {
                    instructions: agent.instructions.clone(),
                    messages: transcript.messages(turn, step, tools),
                    tools: tools.descriptions(),
                    output: agent.output.as_ref().map(Output::schema),
                };
                let chat = &turn.chat.id;
                Box::pin(ModelInputs::of(&*agent.model, request, tools.clone(), chat))
            }
            Errand::Check(call) => {
                let fits = tools.check(&call.tool_name, &call.input);
                one(ready(Input::Checked { tool_call_id: call.tool_call_id, fits }))
            }
            Errand::Prepare(call) => {
                let tools = tools.clone();
                let chat = match tools.look_at_chat(&call.tool_name) {
                    true => Arc::new(transcript.chat_before(&call.tool_call_id)),
                    false => Arc::clone(&turn.chat),
                };
                one(async move {
                    let verdict = tools.prepare(&call, chat).await;
                    Input::Prepared { tool_call_id: call.tool_call_id, verdict }
                })
            }
            Errand::Ask(call) => {
                let (tools, turn) = (tools.clone(), Arc::clone(turn));
                one(async move { ask(&tools, &turn, call).await })
            }
            Errand::RunTool(call) => tools.run(call, turn),
            Errand::CheckOutput => {
                let output = agent.output.as_ref();
                let checked = output.map(|output| output.read(transcript.now()).map(drop));
                one(ready(Input::OutputChecked(checked.unwrap_or(Ok(())))))
            }
        }
    }

    /// What any errand brings next; `None` if none is under way.
    fn poll_errands(&mut self, cx: &mut Context<'_>) -> Poll<Option<Input>> {
        let mut at = 0;
        while let Some(errand) = self.errands.get_mut(at) {
            match errand.as_mut().poll_next(cx) {
                Poll::Ready(Some(input)) => {
                    // Behind the others: what has much to say does not keep them waiting.
                    let errand = self.errands.remove(at);
                    self.errands.extend(errand);
                    return Poll::Ready(Some(input));
                }
                Poll::Ready(None) => drop(self.errands.remove(at)),
                Poll::Pending => at += 1,
            }
        }
        if self.errands.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    }
}

/// However it ends: who hears the last event asks for no more.
impl Drop for AgentRun {
    fn drop(&mut self) {
        let usage = self.run.usage();
        if usage == Usage::default() {
            return;
        }
        self.span.record("gen_ai.usage.input_tokens", usage.input_tokens);
        self.span.record("gen_ai.usage.output_tokens", usage.output_tokens);
    }
}

impl Stream for AgentRun {
    type Item = Result<AgentEvent, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let _entered = this.span.clone().entered();
        loop {
            match this.run.poll() {
                Step::Say(event) => {
                    if matches!(event, AgentEvent::Error { .. }) {
                        failed(&this.span, "run");
                    }
                    this.transcript.hear(&event);
                    return Poll::Ready(Some(Ok(event)));
                }
                Step::Begin(errand) => this.begin(errand),
                Step::Wait => {
                    match poll_ready!(this.step.clone().in_scope(|| this.poll_errands(cx))) {
                        Some(input) => this.run.handle(input),
                        // Every errand says how it ends. If one did not, what is open is closed as of
                        // any stream that ends.
                        None => return Poll::Ready(None),
                    }
                }
                Step::End(_) => return Poll::Ready(None),
            }
        }
    }
}

/// The calls of the chat: of one that the client runs, the id alone says later which it is.
fn calls_of(turn: &Turn) -> impl Iterator<Item = ToolCallId> {
    let parts = turn.chat.messages.iter().flat_map(UiMessage::tool_parts);
    parts.map(|part| part.tool_call_id.clone())
}

async fn ask(tools: &Tools, turn: &Turn, call: OpenCall) -> Input {
    let OpenCall { tool_call_id, tool_name, input, provider_executed, .. } = call;
    let (approvals, message) = (&turn.approvals, &turn.message_id);
    let asked = if provider_executed {
        approvals.ask_for_provider(message, &tool_call_id, &tool_name, &input, None).await
    } else {
        let description = tools.describe(&tool_name, &input);
        let description = description.as_deref();
        approvals.ask(message, &tool_call_id, &tool_name, &input, description).await
    };
    match asked {
        Ok(asked) => Input::Asked {
            tool_call_id,
            details: Some(asked.details()),
            approval_id: asked.approval_id,
        },
        Err(error) => {
            let why = match &error {
                AskError::NotShownAsIs(why) => why.to_string(),
                _ => NOT_ASKED.to_owned(),
            };
            tracing::warn!(%error, tool = &*tool_name, "nobody is asked about a tool call");
            Input::Tool { tool_call_id, event: ToolEvent::Failed(why) }
        }
    }
}

fn one(input: impl Future<Output = Input> + Send + 'static) -> Inputs {
    Box::pin(Once::of(input))
}

/// Said of a call that needs a person, where nobody could be asked.
const NOT_ASKED: &str = "This tool call was not executed: nobody could be asked to approve it.";
