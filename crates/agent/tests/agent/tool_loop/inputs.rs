//! The random inputs of a run: responses to its effects, and unrelated inputs.

use test_support::rng::Dice;
use ui_message_stream::Json;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::id::ToolCallId;
use ui_message_stream::model::{ModelEvent, Usage};
use ui_message_stream_agent::tool_loop::{CallDecision, Effect, Input, ToolEvent};

pub(crate) const IDS: &[&str] = &["c0", "c1", "c0-1", "c0-2", ""];

/// An input about any call, or of the model.
pub(crate) fn any_input(dice: &mut Dice) -> Input {
    let id: ToolCallId = dice.pick(IDS).into();
    match dice.below(10) {
        0..4 => Input::Model(model_event(dice)),
        4 if dice.chance(20) => Input::ModelFailed("gone".into()),
        4 | 5 => input_validated(dice, id),
        6 => approval_decided(dice, id),
        7 => approval_requested(id),
        8 => output_checked(dice),
        _ => tool_event(dice, id),
    }
}

/// An input for an effect that was started, possibly its last.
pub(crate) fn response_to(dice: &mut Dice, started: &[Effect]) -> Option<Input> {
    let effect = started.get(dice.below(started.len().max(1)))?;
    Some(match effect {
        Effect::CallModel { .. } => Input::Model(model_event(dice)),
        Effect::ValidateInput(call) => input_validated(dice, call.tool_call_id.clone()),
        Effect::DecideApproval(call) => approval_decided(dice, call.tool_call_id.clone()),
        Effect::RequestApprovals(calls) => {
            let id = calls[dice.below(calls.len())].tool_call_id.clone();
            if dice.chance(70) { approval_requested(id) } else { tool_event(dice, id) }
        }
        Effect::RunTool(call) => tool_event(dice, call.tool_call_id.clone()),
        Effect::CheckOutput => output_checked(dice),
        other => panic!("{other:?}"),
    })
}

/// The last inputs for an effect.
pub(crate) fn final_responses_to(dice: &mut Dice, effect: &Effect) -> Vec<Input> {
    let failed = || ToolEvent::Failed("failed".to_owned());
    vec![match effect {
        Effect::RequestApprovals(calls) => {
            let requested = calls.iter().map(|call| {
                let tool_call_id = call.tool_call_id.clone();
                match dice.chance(70) {
                    true => approval_requested(tool_call_id),
                    false => Input::Tool { tool_call_id, event: failed() },
                }
            });
            return requested.collect();
        }
        Effect::CallModel { .. } if dice.chance(20) => Input::ModelFailed("gone".into()),
        Effect::CallModel { .. } => Input::Model(ModelEvent::Finished(FinishReason::Stop)),
        Effect::ValidateInput(call) => input_validated(dice, call.tool_call_id.clone()),
        Effect::DecideApproval(call) => approval_decided(dice, call.tool_call_id.clone()),
        Effect::RunTool(call) => {
            Input::Tool { tool_call_id: call.tool_call_id.clone(), event: failed() }
        }
        Effect::CheckOutput => output_checked(dice),
        other => panic!("{other:?}"),
    }]
}

fn output_checked(dice: &mut Dice) -> Input {
    Input::OutputChecked(if dice.chance(50) { Ok(()) } else { Err("not as asked".into()) })
}

fn input_validated(dice: &mut Dice, tool_call_id: ToolCallId) -> Input {
    let result = if dice.chance(80) { Ok(()) } else { Err("wrong".to_owned()) };
    Input::InputValidated { tool_call_id, result }
}

fn approval_decided(dice: &mut Dice, tool_call_id: ToolCallId) -> Input {
    let decision = match dice.below(4) {
        0 => CallDecision::RequireApproval,
        1 => CallDecision::ClientExecuted,
        _ => CallDecision::Run,
    };
    Input::ApprovalDecided { tool_call_id, decision }
}

fn approval_requested(tool_call_id: ToolCallId) -> Input {
    Input::ApprovalRequested { tool_call_id, approval_id: "ap".into(), details: None }
}

fn tool_event(dice: &mut Dice, tool_call_id: ToolCallId) -> Input {
    let event = match dice.below(5) {
        0 => ToolEvent::Preliminary(Json::null()),
        4 => {
            let AgentEvent::Data(data) = AgentEvent::data("seen", Json::null()) else { panic!() };
            ToolEvent::Data(data)
        }
        1 => ToolEvent::Failed("failed".to_owned()),
        _ => ToolEvent::Output(Json::null()),
    };
    Input::Tool { tool_call_id, event }
}

fn model_event(dice: &mut Dice) -> ModelEvent {
    let id = dice.pick(IDS);
    let call = |dice: &mut Dice| {
        let call = ToolCall::new(id, "t");
        match dice.below(6) {
            0 => call.provider_executed(),
            1 => call.client_executed(),
            _ => call,
        }
    };
    let event = match dice.below(20) {
        0..5 => {
            let input = dice.pick(&["{}", "", " ", "{", r#"{"a":1,"a":2}"#, "null"]);
            return ModelEvent::ToolCall(Box::new(call(dice)), input.to_owned());
        }
        5 if dice.chance(50) => return ModelEvent::Finished(FinishReason::ToolCalls),
        5 => {
            return ModelEvent::Usage(Usage { input_tokens: 1, output_tokens: u64::MAX });
        }
        6 => AgentEvent::tool_input_start(call(dice)),
        7 => AgentEvent::tool_input_delta(id, "{"),
        8 => AgentEvent::tool_input(call(dice), Json::null()),
        9 => AgentEvent::tool_input_invalid(call(dice), Json::null(), "wrong"),
        10 => AgentEvent::tool_output(id, Json::null()),
        11 => AgentEvent::preliminary_output(id, Json::null()),
        12 => AgentEvent::tool_failed(id, "failed"),
        13 => AgentEvent::tool_denied(id),
        14 => AgentEvent::approval_requested(id, "ap"),
        15 => AgentEvent::StepStart,
        16 => AgentEvent::StepFinish,
        17 => AgentEvent::text("text"),
        18 if dice.chance(30) => AgentEvent::finish(FinishReason::Stop),
        19 if dice.chance(30) => AgentEvent::error("broken"),
        _ => AgentEvent::reasoning("hm"),
    };
    ModelEvent::Event(event)
}
