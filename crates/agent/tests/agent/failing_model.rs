//! A model that fails at any moment: the message ends, and no incomplete call runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use chat_test_support::calling_model::{asked, chunks, outcomes};
use futures::stream;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::model::{Model, ModelEvent, ModelRequest, ModelStream};
use ui_message_stream_agent::{Agent, Tool, ToolError};

use super::inputs::Number;

/// A model that fails after so many events of its first response.
#[derive(Debug)]
struct FailsAfter(usize);

const ID: &str = "call_1";

fn events() -> Vec<ModelEvent> {
    let call = || ToolCall::new(ID, "double");
    let events = [
        AgentEvent::reasoning("Let me think."),
        AgentEvent::text("I "),
        AgentEvent::text("double it."),
        AgentEvent::tool_input_start(call()),
        AgentEvent::tool_input_delta(ID, r#"{"n":"#),
        AgentEvent::tool_input_delta(ID, "1}"),
    ];
    let events = events.into_iter().map(ModelEvent::Event);
    let call = ModelEvent::ToolCall(Box::new(call()), r#"{"n":1}"#.to_owned());
    events.chain([call, ModelEvent::Finished(FinishReason::ToolCalls)]).collect()
}

impl Model for FailsAfter {
    fn call(&self, _: ModelRequest) -> ModelStream {
        let before = events().into_iter().take(self.0).map(Ok);
        Box::pin(stream::iter(before.chain([Err("overloaded".into())]).collect::<Vec<_>>()))
    }
}

#[tokio::test]
async fn a_model_that_fails_after_any_event_ends_the_message_and_no_incomplete_call_runs() {
    let whole = events().len();
    for after in 0..whole {
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let tool = Tool::new("double", move |input: Number| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move { Ok::<_, ToolError>(2 * input.n) }
        });
        // The page reads as the real client does, and panics where it would throw.
        let page = asked(Agent::new(FailsAfter(after)).tool(tool), "Go").await;
        let chunks = chunks(&page);
        let of = |kind: &str| chunks.iter().filter(|chunk| chunk["type"] == kind).count();
        assert_eq!(of("error"), 1, "{after}: {chunks:?}");
        assert_eq!(chunks.last().unwrap()["type"], "finish", "{after}: {chunks:?}");
        for part in ["text", "reasoning"] {
            let (begun, ended) = (of(&format!("{part}-start")), of(&format!("{part}-end")));
            assert_eq!(begun, ended, "{after}: {chunks:?}");
        }
        // Each call that has begun has a result, an error if its input is incomplete.
        let is_complete = after > 6;
        let begun = after > 3;
        assert_eq!(outcomes(&chunks).len(), usize::from(begun), "{after}: {chunks:?}");
        assert!(is_complete || runs.load(Ordering::SeqCst) == 0, "{after}");
    }
}
