//! The agent's loop, with any inputs: every call ends once or is pending, the model is not called
//! while a call is open, and the loop ends.

mod inputs;
mod watch;

use test_support::rng::{Dice, Shown, setting};
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::id::ToolCallId;
use ui_message_stream::model::{ModelEvent, Usage};
use ui_message_stream::{Json, UserText};
use ui_message_stream_agent::tool_loop::{
    Action, CallDecision, Effect, Input, RunEnd, ToolEvent, ToolLoop,
};

use self::inputs::{IDS, any_input, final_responses_to, response_to};
use self::watch::{Coverage, LoopObserver};

/// `RUN_CASES` sets the number of cases (5 000), `RUN_SEED` the seed.
#[test]
fn for_any_inputs_every_call_ends_once_or_is_pending() {
    let seed = setting("RUN_SEED").unwrap_or(20_261_120);
    let cases = setting("RUN_CASES").unwrap_or(5_000);
    let mut coverage = Coverage::default();
    for case in 0..cases {
        let _shown = Shown { seed, case };
        let mut dice = Dice::new(seed, case);
        let most_steps = dice.below(4) as u32;
        let taken: Vec<ToolCallId> = (0..dice.below(3)).map(|_| dice.pick(IDS).into()).collect();
        let mut run = ToolLoop::new(most_steps).with_known_call_ids(taken.clone());
        if dice.chance(30) {
            run = run.with_output_check();
        }
        let mut observer = LoopObserver::new(most_steps, taken);
        let honesty = [0, 30, 70, 90][dice.below(4)];
        for _ in 0..dice.below(80) {
            match dice.below(3) {
                0 => observer.observe(run.poll()),
                _ if dice.chance(honesty) => {
                    if let Some(input) = response_to(&mut dice, &observer.effects) {
                        run.handle(input);
                    }
                }
                _ => run.handle(any_input(&mut dice)),
            }
        }
        // Then every effect gets its last input, and the run ends.
        let end = (0..10_000).find_map(|_| match run.poll() {
            Action::End(end) => Some(end),
            Action::Wait => {
                let effect = observer.next_effect().expect("the loop waits for an effect");
                for input in final_responses_to(&mut dice, &effect) {
                    run.handle(input);
                }
                None
            }
            step => {
                observer.observe(step);
                None
            }
        });
        let end = end.expect("the run ends");
        observer.observe(Action::End(end.clone()));
        coverage.add(&observer, &end);
        for _ in 0..5 {
            run.handle(any_input(&mut dice));
            assert_eq!(run.poll(), Action::End(end.clone()), "the end does not change");
        }
    }
    coverage.check(cases);
}

/// A run whose model was called.
fn run_with_called_model() -> ToolLoop {
    let mut run = ToolLoop::new(3);
    assert_eq!(run.poll(), Action::Emit(AgentEvent::StepStart));
    assert_eq!(run.poll(), Action::Start(Effect::CallModel { step: 1 }));
    run
}

fn emit_from_model(run: &mut ToolLoop, event: ModelEvent) {
    run.handle(Input::Model(event));
}

fn call(run: &mut ToolLoop, id: &str) {
    emit_from_model(run, ModelEvent::ToolCall(Box::new(ToolCall::new(id, "t")), "{}".to_owned()));
}

fn valid_input(id: &str) -> Input {
    Input::InputValidated { tool_call_id: id.into(), result: Ok(()) }
}

fn decided_to_run(id: &str) -> Input {
    Input::ApprovalDecided { tool_call_id: id.into(), decision: CallDecision::Run }
}

fn output(id: &str, output: &str) -> Input {
    let event = ToolEvent::Output(Json::string(output));
    Input::Tool { tool_call_id: id.into(), event }
}

/// All actions until the loop waits for an input.
fn steps(run: &mut ToolLoop) -> Vec<Action> {
    let mut steps = Vec::new();
    loop {
        match run.poll() {
            Action::Wait => return steps,
            end @ Action::End(_) => {
                steps.push(end);
                return steps;
            }
            step => steps.push(step),
        }
    }
}

/// The outputs among these actions.
fn outputs(run: &mut ToolLoop) -> Vec<Action> {
    let mut steps = steps(run);
    steps.retain(|step| matches!(step, Action::Emit(AgentEvent::ToolOutput { .. })));
    steps
}

#[test]
fn two_calls_with_the_same_id_are_separate_calls() {
    let mut run = run_with_called_model();
    for _ in 0..2 {
        let start = AgentEvent::tool_input_start(ToolCall::new("call_0", "t"));
        emit_from_model(&mut run, ModelEvent::Event(start));
        emit_from_model(&mut run, ModelEvent::Event(AgentEvent::tool_input_delta("call_0", "{}")));
        call(&mut run, "call_0");
    }
    emit_from_model(&mut run, ModelEvent::Finished(FinishReason::ToolCalls));
    let actions: Vec<Action> = steps(&mut run);
    let ids = |actions: &[Action]| -> Vec<String> {
        let id = |step: &Action| match step {
            Action::Emit(AgentEvent::ToolInputStart { call }) => Some(call.id.to_string()),
            Action::Emit(AgentEvent::ToolInputDelta { tool_call_id, .. }) => {
                Some(tool_call_id.to_string())
            }
            Action::Start(Effect::ValidateInput(call)) => Some(call.tool_call_id.to_string()),
            _ => None,
        };
        actions.iter().filter_map(id).collect()
    };
    let (one, two) = ("call_0", "call_0-1");
    assert_eq!(ids(&actions), [one, one, two, two, one, two]);
    for id in [one, two] {
        run.handle(valid_input(id));
        run.handle(decided_to_run(id));
    }
    run.handle(output(two, "of the second"));
    run.handle(output(one, "of the first"));
    let outputs = outputs(&mut run);
    let is = |id, text| Action::Emit(AgentEvent::tool_output(id, Json::string(text)));
    assert_eq!(outputs, [is(two, "of the second"), is(one, "of the first")]);
}

#[test]
fn a_call_id_that_the_model_reuses_names_a_new_call() {
    let mut run = ToolLoop::new(3).with_known_call_ids(["call_0".into()]);
    for id in ["call_0-1", "call_0-2"] {
        let _ = steps(&mut run);
        call(&mut run, "call_0");
        emit_from_model(&mut run, ModelEvent::Finished(FinishReason::ToolCalls));
        for input in [valid_input(id), decided_to_run(id), output(id, "x")] {
            run.handle(input);
        }
    }
    let announced = |step: &Action| matches!(step, Action::Start(Effect::CallModel { step: 3 }));
    assert!(steps(&mut run).iter().any(announced), "both calls have their results");
}

#[test]
fn a_provider_result_belongs_to_the_latest_call_with_its_id() {
    let mut run = run_with_called_model();
    for n in ["1", "2"] {
        let call = ToolCall::new("call_0", "search").provider_executed();
        for event in [
            AgentEvent::tool_input(call, Json::string(n)),
            AgentEvent::tool_output("call_0", Json::string(n)),
        ] {
            emit_from_model(&mut run, ModelEvent::Event(event));
        }
    }
    emit_from_model(&mut run, ModelEvent::Finished(FinishReason::Stop));
    let outputs = outputs(&mut run);
    let is = |id, n| Action::Emit(AgentEvent::tool_output(id, Json::string(n)));
    assert_eq!(outputs, [is("call_0", "1"), is("call_0-1", "2")]);
}

#[test]
fn a_call_that_is_left_out_takes_no_result_from_an_earlier_call_with_its_id() {
    let mut run = run_with_called_model().with_max_step_calls(1);
    for _ in 0..2 {
        let call = ToolCall::new("call_0", "search").provider_executed();
        let input = AgentEvent::tool_input(call, Json::string("1"));
        emit_from_model(&mut run, ModelEvent::Event(input));
    }
    let output = AgentEvent::tool_output("call_0", Json::string("1"));
    emit_from_model(&mut run, ModelEvent::Event(output.clone()));
    assert!(steps(&mut run).contains(&Action::Emit(output)));
}

#[test]
fn of_many_calls_that_begin_before_one_is_complete_the_first_ones_are_executed() {
    let mut run = run_with_called_model().with_max_step_calls(64);
    let ids: Vec<String> = (0..2_000).map(|number| format!("call_{number}")).collect();
    for id in &ids {
        let start = AgentEvent::tool_input_start(ToolCall::new(&**id, "t"));
        emit_from_model(&mut run, ModelEvent::Event(start));
    }
    let _ = steps(&mut run);
    for id in &ids[..1_000] {
        call(&mut run, id);
    }
    emit_from_model(&mut run, ModelEvent::Finished(FinishReason::ToolCalls));
    let (mut executed, mut left_out) = (Vec::new(), Vec::new());
    for step in steps(&mut run) {
        match step {
            Action::Start(Effect::ValidateInput(call)) => executed.push(call.tool_call_id),
            Action::Emit(AgentEvent::ToolInputInvalid { call, .. }) => left_out.push(call.id),
            _ => {}
        }
    }
    assert_eq!(executed, ids[..64].iter().map(|id| (&**id).into()).collect::<Vec<_>>());
    assert_eq!(left_out, ids[64..1_000].iter().map(|id| (&**id).into()).collect::<Vec<_>>());
}

#[test]
fn an_output_from_the_model_for_a_server_tool_is_ignored() {
    let mut run = run_with_called_model();
    call(&mut run, "c");
    emit_from_model(
        &mut run,
        ModelEvent::Event(AgentEvent::tool_output("c", Json::string("made up"))),
    );
    let is_output = |step: &Action| matches!(step, Action::Emit(AgentEvent::ToolOutput { .. }));
    assert!(!steps(&mut run).iter().any(is_output));
}

#[test]
fn a_call_runs_only_if_the_response_that_holds_it_has_ended_well() {
    let finished = |reason| Input::Model(ModelEvent::Finished(reason));
    let calls: [fn(&mut ToolLoop); 2] = [
        |run| call(run, "c"),
        |run| {
            let call = Box::new(ToolCall::new("c", "t"));
            emit_from_model(run, ModelEvent::ProviderApprovalRequest(call, "{}".to_owned()));
        },
    ];
    for (end, begins) in [
        (finished(FinishReason::Stop), true),
        (finished(FinishReason::ToolCalls), true),
        (finished(FinishReason::Length), false),
        (finished(FinishReason::ContentFilter), false),
        (finished(FinishReason::Error), false),
        (finished(FinishReason::Other), false),
        (finished(FinishReason::Interrupted), false),
        (Input::ModelFailed("gone".into()), false),
        (Input::Model(ModelEvent::Event(AgentEvent::error("gone"))), false),
    ] {
        for call in calls {
            let mut run = run_with_called_model();
            call(&mut run);
            assert_eq!(steps(&mut run), [], "before {end:?}");
            run.handle(end.clone());
            let actions = steps(&mut run);
            let has_begun = actions.iter().any(|step| {
                matches!(
                    step,
                    Action::Start(Effect::ValidateInput(_) | Effect::RequestApprovals(_))
                )
            });
            assert_eq!(has_begun, begins, "{end:?}: {actions:?}");
            let refused = actions.iter().filter(|step| {
                matches!(step, Action::Emit(AgentEvent::ToolInputInvalid { error, .. })
                    if **error == *UserText::NotStarted.text())
            });
            assert_eq!(refused.count(), usize::from(!begins), "{end:?}: {actions:?}");
        }
    }
}

#[test]
fn a_call_that_is_not_streamed_precedes_what_the_model_writes_after_it() {
    let start = |call: ToolCall| ModelEvent::Event(AgentEvent::tool_input_start(call));
    let search = || ToolCall::new("s", "search").provider_executed();
    let text_id = || "text".into();
    for (after, is_content) in [
        (ModelEvent::Event(AgentEvent::text("After")), true),
        (ModelEvent::Event(AgentEvent::TextStart { id: text_id() }), true),
        (ModelEvent::Event(AgentEvent::tool_input(search(), Json::string("x"))), true),
        (start(ToolCall::new("d", "t")), true),
        (ModelEvent::Event(AgentEvent::TextEnd { id: text_id() }), false),
        (ModelEvent::Usage(Usage::default()), false),
    ] {
        let mut run = run_with_called_model();
        emit_from_model(&mut run, ModelEvent::Event(AgentEvent::text("Before")));
        call(&mut run, "a");
        emit_from_model(&mut run, start(ToolCall::new("b", "t")));
        call(&mut run, "b");
        let call = Box::new(ToolCall::new("c", "t"));
        emit_from_model(&mut run, ModelEvent::ProviderApprovalRequest(call, "{}".to_owned()));
        let before = steps(&mut run);
        emit_from_model(&mut run, after.clone());
        let starts = |actions: &[Action]| -> Vec<String> {
            let id = |action: &Action| match action {
                Action::Emit(AgentEvent::ToolInputStart { call }) => Some(call.id.to_string()),
                _ => None,
            };
            actions.iter().map_while(id).collect()
        };
        assert_eq!(starts(&before[1..]), ["a", "b"], "{after:?}");
        let mut actions = steps(&mut run);
        let expected: &[&str] = match (&after, is_content) {
            (_, false) => &[],
            (ModelEvent::Event(AgentEvent::ToolInputStart { .. }), true) => &["c", "d"],
            (_, true) => &["c"],
        };
        assert_eq!(starts(&actions), expected, "{after:?}");
        // Each is announced once.
        emit_from_model(&mut run, ModelEvent::Event(AgentEvent::text("More")));
        emit_from_model(&mut run, ModelEvent::Finished(FinishReason::ToolCalls));
        actions.extend(steps(&mut run));
        let is_start = |action: &&Action| matches!(action, Action::Emit(AgentEvent::ToolInputStart { call }) if &*call.id == "c");
        assert_eq!(actions.iter().filter(is_start).count(), 1, "{after:?}");
    }
}

#[test]
fn an_empty_answer_is_a_failure() {
    let texts = [Some(" \n"), Some("Hello"), None];
    for (text, has_begun) in texts.into_iter().flat_map(|text| [(text, false), (text, true)]) {
        let mut run = ToolLoop::new(3).with_usage_metadata(Usage::default());
        if has_begun {
            run = run.with_begun_answer();
        }
        let _ = steps(&mut run);
        let usage = Usage { input_tokens: 9, output_tokens: 1 };
        emit_from_model(&mut run, ModelEvent::Usage(usage));
        if let Some(text) = text {
            emit_from_model(&mut run, ModelEvent::Event(AgentEvent::text(text)));
        }
        emit_from_model(&mut run, ModelEvent::Finished(FinishReason::ToolCalls));
        let is_empty = text != Some("Hello") && !has_begun;
        let end = if is_empty { RunEnd::Empty } else { RunEnd::Finished };
        let actions = steps(&mut run);
        assert_eq!(actions.last(), Some(&Action::End(end)), "{text:?}, {has_begun}: {actions:?}");
        let failure = Action::Emit(AgentEvent::error(UserText::AnswerEmpty));
        assert_eq!(actions.contains(&failure), is_empty, "{text:?}, {has_begun}: {actions:?}");
        let is_usage = |action: &Action| match action {
            Action::Emit(AgentEvent::Metadata(usage)) => usage.as_str().contains("9"),
            Action::Emit(AgentEvent::Finish { metadata, .. }) => metadata.is_some(),
            _ => false,
        };
        assert!(actions.iter().any(is_usage), "{text:?}, {has_begun}: {actions:?}");
    }
}

/// A client executes a call when it reads its whole input.
#[test]
fn the_client_reads_the_input_of_its_call_when_the_call_is_decided() {
    let input = || Json::parse(r#"{"city":"Bern"}"#).unwrap();
    let tool = || ToolCall::new("c", "locate").client_executed();
    let is_input = |step: &Action| matches!(step, Action::Emit(AgentEvent::ToolInput { .. }));
    for (decision, streamed) in [
        (CallDecision::ClientExecuted, ""),
        (CallDecision::NotPermitted, ""),
        (CallDecision::RequireApproval, ""),
        (CallDecision::RequireApproval, " "),
        (CallDecision::RequireApproval, r#"{"city":"Be"#),
        (CallDecision::RequireApproval, "\n{\"city\": \"Bern\"} "),
        (CallDecision::RequireApproval, r#"{"city": "Bern"}"#),
        // The user would be asked about another input than the one that runs.
        (CallDecision::RequireApproval, r#"{"city": "Basel"}"#),
    ] {
        let mut run = run_with_called_model();
        let mut seen = Vec::new();
        if !streamed.is_empty() {
            for event in [
                AgentEvent::tool_input_start(tool()),
                AgentEvent::tool_input_delta("c", streamed.to_owned()),
            ] {
                emit_from_model(&mut run, ModelEvent::Event(event));
            }
        }
        let event = ModelEvent::ToolCall(Box::new(tool()), input().to_string());
        emit_from_model(&mut run, event);
        emit_from_model(&mut run, ModelEvent::Finished(FinishReason::ToolCalls));
        run.handle(valid_input("c"));
        seen.extend(steps(&mut run));
        assert!(!seen.iter().any(is_input), "before it is decided: {seen:?}");
        let decided = decision.clone();
        run.handle(Input::ApprovalDecided { tool_call_id: "c".into(), decision: decided });
        seen.extend(steps(&mut run));
        let has_error = seen
            .iter()
            .any(|step| matches!(step, Action::Emit(AgentEvent::ToolInputInvalid { .. })));
        assert_eq!(seen.iter().any(is_input), decision == CallDecision::ClientExecuted);
        let is_other = streamed.contains("Basel");
        assert_eq!(has_error, decision == CallDecision::NotPermitted || is_other, "{seen:?}");
        let text: String = seen
            .iter()
            .filter_map(|step| match step {
                Action::Emit(AgentEvent::ToolInputDelta { delta, .. }) => Some(&**delta),
                _ => None,
            })
            .collect();
        if decision == CallDecision::RequireApproval && !is_other {
            assert_eq!(
                Json::parse(text.trim()).unwrap().as_str().replace(' ', ""),
                r#"{"city":"Bern"}"#
            );
        }
    }
}

/// Beside a call of the client that is announced already, a refusal is no denial, which would keep the client from
/// sending the output.
#[test]
fn a_refusal_is_written_after_the_calls_of_the_client_are_announced() {
    let refused = AgentEvent::tool_refused("refused", UserText::NotPermitted);
    let is_refusal = |step: &Action| *step == Action::Emit(refused.clone());
    let is_announced = |step: &Action| match step {
        Action::Emit(AgentEvent::ToolInput { call, .. }) => &*call.id == "c",
        _ => false,
    };
    let mut run = run_with_called_model();
    call(&mut run, "refused");
    let of_client = ToolCall::new("c", "locate").client_executed();
    let event = ModelEvent::ToolCall(Box::new(of_client), "{}".to_owned());
    emit_from_model(&mut run, event);
    emit_from_model(&mut run, ModelEvent::Finished(FinishReason::ToolCalls));
    let decide = |id: &str, decision| Input::ApprovalDecided { tool_call_id: id.into(), decision };
    for input in
        [valid_input("refused"), decide("refused", CallDecision::NotPermitted), valid_input("c")]
    {
        run.handle(input);
        let begun = steps(&mut run);
        assert!(!begun.iter().any(is_refusal), "{begun:?}");
    }
    run.handle(decide("c", CallDecision::ClientExecuted));
    let rest = steps(&mut run);
    let (announced, refused) =
        (rest.iter().position(is_announced), rest.iter().position(is_refusal));
    assert!(announced.is_some() && announced < refused, "{rest:?}");
    assert!(matches!(rest.last(), Some(Action::End(_))), "{rest:?}");
}

#[test]
fn token_counts_saturate_instead_of_overflowing() {
    let mut run = run_with_called_model();
    for _ in 0..2 {
        let usage = Usage { input_tokens: u64::MAX - 1, output_tokens: 1 };
        emit_from_model(&mut run, ModelEvent::Usage(usage));
    }
    assert_eq!(run.usage().input_tokens, u64::MAX);
}
