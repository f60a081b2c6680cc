//! `bench-peer-aisdk PORT`: `stream_text` of aisdk with a scripted model and tools, sent with
//! `to_axum_vercel_ui_stream`.

use std::pin::Pin;

use aisdk::core::capabilities::{TextInputSupport, TextOutputSupport, ToolCallSupport};
use aisdk::core::language_model::{
    LanguageModel, LanguageModelOptions, LanguageModelResponse,
    LanguageModelResponseContentType as Content, LanguageModelStreamChunk as Chunk,
};
use aisdk::core::tools::{Tool, ToolExecute};
use aisdk::core::{
    AssistantMessage, LanguageModelRequest, LanguageModelStreamChunkType as Delta, Message,
    ToolCallInfo,
};
use aisdk::integrations::vercel_aisdk_ui::VercelUIRequest;
use async_trait::async_trait;
use axum::Json;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use bench_work::{Answer, Step};
use futures::{Stream, stream};

fn main() -> std::io::Result<()> {
    bench_work::serve(route)
}

fn route(answer: &'static Answer) -> MethodRouter {
    post(async move |Json(request): Json<VercelUIRequest>| respond(answer, request).await)
}

async fn respond(answer: &'static Answer, request: VercelUIRequest) -> Response {
    let builder = LanguageModelRequest::builder().model(Scripted(answer));
    let mut request = builder.messages(request.into()).with_tool(tool(answer)).build();
    let response = request.stream_text().await.expect("the model is scripted");
    let stream = response.to_axum_vercel_ui_stream().send_start().send_finish();
    stream.build().into_response()
}

/// Returns the tool that this answer calls.
fn tool(answer: &'static Answer) -> Tool {
    let call = &answer[0].calls[0];
    Tool {
        name: call.tool.to_owned(),
        description: String::new(),
        input_schema: schemars::Schema::default(),
        execute: ToolExecute::new(Box::new(|_| {
            serde_json::to_string(&call.output).map_err(|error| error.to_string())
        })),
    }
}

/// A model that says one step of an answer in each call.
#[derive(Debug, Clone)]
struct Scripted(&'static Answer);

impl TextInputSupport for Scripted {}
impl TextOutputSupport for Scripted {}
impl ToolCallSupport for Scripted {}

type Chunks = Pin<Box<dyn Stream<Item = aisdk::Result<Vec<Chunk>>> + Send>>;

#[async_trait]
impl LanguageModel for Scripted {
    fn name(&self) -> String {
        "scripted".to_owned()
    }

    async fn generate_text(
        &mut self,
        _: LanguageModelOptions,
    ) -> aisdk::Result<LanguageModelResponse> {
        unreachable!("the answers are streamed")
    }

    async fn stream_text(&mut self, options: LanguageModelOptions) -> aisdk::Result<Chunks> {
        let results = options.messages().into_iter();
        let results = results.filter(|message| matches!(message, Message::Tool(_))).count();
        let mut before = 0;
        let step = self.0.iter().find(|step| {
            let is_next = before >= results;
            before += step.calls.len();
            is_next
        });
        Ok(Box::pin(stream::iter(says(step.expect("the last step ends the answer")).map(Ok))))
    }
}

fn says(step: &'static Step) -> impl Iterator<Item = Vec<Chunk>> + Send {
    let texts = step.texts.iter().map(|text| Chunk::Delta(Delta::Text((*text).to_owned())));
    let calls = step.calls.iter().map(|call| {
        let mut info = ToolCallInfo::new(call.tool);
        info.id(&*call.id);
        info.input(serde_json::from_str(call.input).expect("it is JSON"));
        done(Content::ToolCall(info))
    });
    let end = step.calls.is_empty().then(|| done(Content::Text(step.texts.concat())));
    texts.chain(calls).chain(end).map(|chunk| vec![chunk])
}

fn done(content: Content) -> Chunk {
    Chunk::Done(AssistantMessage { content, usage: None })
}
