//! The loop of the agent, whatever it is told: every call has one end or waits, the model is not
//! called while one is open, and the loop comes to its end.

mod inputs;
mod watch;

use test_support::rng::{Dice, Shown, setting};
use ui_message_stream::Json;
use ui_message_stream::agent::tool_loop::{
    Action, CallDecision, Effect, Input, RunEnd, ToolEvent, ToolLoop,
};
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::id::ToolCallId;
use ui_message_stream::model::{ModelEvent, Usage};

use self::inputs::{IDS, answer, any_input, last_answer};
use self::watch::{Met, Watch};

/// `RUN_CASES` says how many (5 000), `RUN_SEED` which ones.
#[test]
fn whatever_comes_every_call_ends_once_or_waits() {
    let seed = setting("RUN_SEED").unwrap_or(20_261_120);
    let cases = setting("RUN_CASES").unwrap_or(5_000);
    let mut met = Met::default();
    for case in 0..cases {
        let _shown = Shown { seed, case };
        let mut dice = Dice::new(seed, case);
        let most_steps = dice.below(4) as u32;
        let taken: Vec<ToolCallId> = (0..dice.below(3)).map(|_| dice.pick(IDS).into()).collect();
        let mut run = ToolLoop::new(most_steps).with_known_call_ids(taken.clone());
        if dice.chance(30) {
            run = run.with_output_check();
        }
        let mut watch = Watch::new(most_steps, taken);
        let honesty = [0, 30, 70, 90][dice.below(4)];
        for _ in 0..dice.below(80) {
            match dice.below(3) {
                0 => watch.see(run.poll()),
                _ if dice.chance(honesty) => {
                    if let Some(input) = answer(&mut dice, &watch.errands) {
                        run.handle(input);
                    }
                }
                _ => run.handle(any_input(&mut dice)),
            }
        }
        // Then every errand comes to its end, and so does the run.
        let end = (0..10_000).find_map(|_| match run.poll() {
            Action::End(end) => Some(end),
            Action::Wait => {
                let errand = watch.next_errand().expect("it waits for something");
                run.handle(last_answer(&mut dice, &errand));
                None
            }
            step => {
                watch.see(step);
                None
            }
        });
        let end = end.expect("the run ends");
        watch.see(Action::End(end.clone()));
        met.add(&watch, &end);
        for _ in 0..5 {
            run.handle(any_input(&mut dice));
            assert_eq!(run.poll(), Action::End(end.clone()), "the end is the end");
        }
    }
    met.check(cases);
}

/// A run whose model has begun to speak.
fn speaking() -> ToolLoop {
    let mut run = ToolLoop::new(3);
    assert_eq!(run.poll(), Action::Emit(AgentEvent::StepStart));
    assert_eq!(run.poll(), Action::Start(Effect::CallModel { step: 1 }));
    run
}

fn said(run: &mut ToolLoop, event: ModelEvent) {
    run.handle(Input::Model(event));
}

fn call(run: &mut ToolLoop, id: &str) {
    said(run, ModelEvent::ToolCall(Box::new(ToolCall::new(id, "t")), "{}".to_owned()));
}

fn fits(id: &str) -> Input {
    Input::InputValidated { tool_call_id: id.into(), fits: Ok(()) }
}

fn runs(id: &str) -> Input {
    Input::ApprovalDecided { tool_call_id: id.into(), verdict: CallDecision::Run }
}

fn output(id: &str, output: &str) -> Input {
    let event = ToolEvent::Output(Json::string(output));
    Input::Tool { tool_call_id: id.into(), event }
}

/// What is to be done until something has to come.
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

#[test]
fn two_calls_of_one_id_are_two_calls() {
    let mut run = speaking();
    for _ in 0..2 {
        let start = AgentEvent::tool_input_start(ToolCall::new("call_0", "t"));
        said(&mut run, ModelEvent::Event(start));
        said(&mut run, ModelEvent::Event(AgentEvent::tool_input_delta("call_0", "{}")));
        call(&mut run, "call_0");
    }
    said(&mut run, ModelEvent::Finished(FinishReason::ToolCalls));
    let said: Vec<Action> = steps(&mut run);
    let ids = |said: &[Action]| -> Vec<String> {
        let id = |step: &Action| match step {
            Action::Emit(AgentEvent::ToolInputStart { call }) => Some(call.id.to_string()),
            Action::Emit(AgentEvent::ToolInputDelta { tool_call_id, .. }) => {
                Some(tool_call_id.to_string())
            }
            Action::Start(Effect::ValidateInput(call)) => Some(call.tool_call_id.to_string()),
            _ => None,
        };
        said.iter().filter_map(id).collect()
    };
    let (one, two) = ("call_0", "call_0-1");
    assert_eq!(ids(&said), [one, one, one, two, two, two]);
    for id in [one, two] {
        run.handle(fits(id));
        run.handle(runs(id));
    }
    run.handle(output(two, "of the second"));
    run.handle(output(one, "of the first"));
    let outputs: Vec<Action> = steps(&mut run)
        .into_iter()
        .filter(|step| matches!(step, Action::Emit(AgentEvent::ToolOutput { .. })))
        .collect();
    let is = |id, text| Action::Emit(AgentEvent::tool_output(id, Json::string(text)));
    assert_eq!(outputs, [is(two, "of the second"), is(one, "of the first")]);
}

#[test]
fn a_model_that_numbers_its_calls_anew_means_other_calls() {
    let mut run = ToolLoop::new(3).with_known_call_ids(["call_0".into()]);
    for id in ["call_0-1", "call_0-2"] {
        let _ = steps(&mut run);
        call(&mut run, "call_0");
        said(&mut run, ModelEvent::Finished(FinishReason::ToolCalls));
        for input in [fits(id), runs(id), output(id, "x")] {
            run.handle(input);
        }
    }
    let announced = |step: &Action| matches!(step, Action::Start(Effect::CallModel { step: 3 }));
    assert!(steps(&mut run).iter().any(announced), "both calls have their results");
}

#[test]
fn a_result_of_the_providers_goes_to_the_call_that_is_meant() {
    let mut run = speaking();
    for n in ["1", "2"] {
        let call = ToolCall::new("call_0", "search").provider_executed();
        said(&mut run, ModelEvent::Event(AgentEvent::tool_input(call, Json::string(n))));
        said(&mut run, ModelEvent::Event(AgentEvent::tool_output("call_0", Json::string(n))));
    }
    said(&mut run, ModelEvent::Finished(FinishReason::Stop));
    let outputs: Vec<Action> = steps(&mut run)
        .into_iter()
        .filter(|step| matches!(step, Action::Emit(AgentEvent::ToolOutput { .. })))
        .collect();
    let is = |id, n| Action::Emit(AgentEvent::tool_output(id, Json::string(n)));
    assert_eq!(outputs, [is("call_0", "1"), is("call_0-1", "2")]);
}

#[test]
fn a_model_does_not_say_what_a_tool_of_the_server_returned() {
    let mut run = speaking();
    call(&mut run, "c");
    said(&mut run, ModelEvent::Event(AgentEvent::tool_output("c", Json::string("made up"))));
    let is_output = |step: &Action| matches!(step, Action::Emit(AgentEvent::ToolOutput { .. }));
    assert!(!steps(&mut run).iter().any(is_output));
}

#[test]
fn where_the_model_breaks_off_what_runs_comes_to_its_end_and_nothing_begins() {
    let mut run = speaking();
    call(&mut run, "runs");
    call(&mut run, "waits_to_run");
    for input in [fits("runs"), fits("waits_to_run"), runs("runs")] {
        run.handle(input);
    }
    run.handle(Input::ModelFailed("gone".into()));
    run.handle(runs("waits_to_run"));
    let begun = steps(&mut run);
    assert!(!begun.iter().any(|step| matches!(step, Action::Start(Effect::RunTool(call))
        if &*call.tool_call_id == "waits_to_run")));
    run.handle(output("runs", "done"));
    assert_eq!(
        steps(&mut run),
        [
            Action::Emit(AgentEvent::tool_output("runs", Json::string("done"))),
            Action::Emit(AgentEvent::error("gone")),
            Action::End(RunEnd::Failed),
        ]
    );
}

#[test]
fn more_tokens_than_a_number_holds_are_as_many_as_it_holds() {
    let mut run = speaking();
    for _ in 0..2 {
        let usage = Usage { input_tokens: u64::MAX - 1, output_tokens: 1 };
        said(&mut run, ModelEvent::Usage(usage));
    }
    assert_eq!(run.usage().input_tokens, u64::MAX);
}
