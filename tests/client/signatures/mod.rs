//! Signatures and the canonical form against the real SDK, on random tool calls: the same text, the
//! same signatures, and the same opinion on what a browser shows as it is.
//!
//! `SIGNATURE_CASES` says how many calls to try (1 000), `SIGNATURE_SEED` which ones, and
//! `SIGNATURE_ONLY` that only the one of this number is. Without Node the SDK is not asked, which is
//! said aloud, and is a failure where `CI=true`. No feature of `serde_json` may change a result:
//! `just signatures` runs it with and without those that change how numbers and keys are kept.

mod calls;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;
use test_support::external_processes::{node_project, say};
use test_support::rng::setting;
use ui_message_stream::Json;
use ui_message_stream::approval::{
    AiSdkSignature, CanonicalJson, InexactInputError, SignCallError, SignatureForm, SignedCall,
};

use calls::Call;

#[test]
fn what_a_browser_shows_as_it_is_is_signed_as_the_sdk_signs_it() {
    let Some(folder) = node_project("tests/client") else { return };
    let seed = setting("SIGNATURE_SEED").unwrap_or(20_260_201);
    let count = setting("SIGNATURE_CASES").unwrap_or(1_000);
    let numbers = setting("SIGNATURE_ONLY").map_or(0..count, |only| only..only + 1);

    let mut tally = Tally::default();
    let mut faults = Vec::new();
    ask_the_sdk(&folder, seed, numbers, |number, call, answer| {
        if let Err(fault) = tally.compare(call, answer) {
            faults.push(format!("SIGNATURE_ONLY={number}: {fault}\n{call:#?}\n{answer:#?}"));
        }
    });
    say(&format!("signatures: {} (SIGNATURE_SEED={seed})", tally.summary()));
    if let Some(smallest) = faults.iter().min_by_key(|fault| fault.len()) {
        panic!("{} faults, SIGNATURE_SEED={seed} {smallest}", faults.len());
    }
    // A generator of nothing but nonsense would agree, too.
    assert!(tally.calls < 100 || tally.shown > tally.calls / 2);
}

/// What the SDK, and the rule in JavaScript, say of a call.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    shown_as_is: bool,
    /// None if the SDK does not read the input.
    lines: Option<Signed>,
    json_array: Option<Signed>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Signed {
    canonical_input: String,
    signature: String,
}

fn ask_the_sdk(
    folder: &Path,
    seed: u64,
    numbers: std::ops::Range<u64>,
    mut compare: impl FnMut(u64, &Call, &Answer),
) {
    let mut node = Command::new("node")
        .arg("sign.mjs")
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut questions = node.stdin.take().unwrap();
    let mut answers = BufReader::new(node.stdout.take().unwrap()).lines();
    std::thread::scope(|scope| {
        let asked = numbers.clone();
        scope.spawn(move || {
            for number in asked {
                let question = serde_json::to_string(&Call::random(seed, number)).unwrap();
                // Who is asked says why, if nobody listens.
                let _ = writeln!(questions, "{question}");
            }
        });
        for number in numbers {
            let line = answers.next().expect("Node has stopped").unwrap();
            compare(number, &Call::random(seed, number), &serde_json::from_str(&line).unwrap());
        }
    });
    assert!(node.wait().unwrap().success());
}

/// How many calls were of which kind.
#[derive(Default)]
struct Tally {
    calls: u64,
    shown: u64,
    /// By the error.
    refused: BTreeMap<String, u64>,
    with_line_break: u64,
}

impl Tally {
    fn compare(&mut self, call: &Call, answer: &Answer) -> Result<(), String> {
        self.calls += 1;
        let parsed = Json::parse(&call.input_text).map_err(InexactInputError::from);
        match parsed.and_then(|input| Ok((CanonicalJson::of(&input)?, input))) {
            Ok((form, input)) => {
                self.shown += 1;
                self.compare_signatures(call, &input, &form, answer)
            }
            Err(error) => {
                *self.refused.entry(error.to_string()).or_default() += 1;
                match answer.shown_as_is {
                    true => Err(format!("refused, but a browser shows it as it is: {error}")),
                    false => Ok(()),
                }
            }
        }
    }

    fn compare_signatures(
        &mut self,
        call: &Call,
        input: &Json,
        form: &CanonicalJson,
        answer: &Answer,
    ) -> Result<(), String> {
        let Answer { shown_as_is: true, lines: Some(lines), json_array: Some(array) } = answer
        else {
            return Err("admitted, but a browser shows something else".to_owned());
        };
        for signed in [lines, array] {
            if form.as_str() != signed.canonical_input {
                return Err(format!("another canonical form: {form:?}"));
            }
        }
        let key = AiSdkSignature::new(call.secret.as_bytes()).map_err(|error| error.to_string())?;
        let signed_call = SignedCall {
            approval_id: &call.approval_id.as_str().into(),
            tool_call_id: &call.tool_call_id.as_str().into(),
            tool_name: &call.tool_name,
            input,
        };
        let here = |form| key.sign(form, signed_call);
        let verifies = |signed: &Signed| key.verify(&signed.signature, signed_call).is_ok();
        let array_here = here(SignatureForm::JsonArray).map_err(|error| error.to_string())?;
        if array_here != array.signature || !verifies(array) {
            return Err(format!("as a JSON array: {array_here}"));
        }
        let names = [&call.approval_id, &call.tool_call_id, &call.tool_name];
        if names.iter().any(|name| name.contains('\n')) {
            self.with_line_break += 1;
            let refused = matches!(here(SignatureForm::Lines), Err(SignCallError::LineBreak));
            return match refused && !verifies(lines) {
                true => Ok(()),
                false => Err("a line break in lines".to_owned()),
            };
        }
        let lines_here = here(SignatureForm::Lines).map_err(|error| error.to_string())?;
        if lines_here != lines.signature || !verifies(lines) {
            return Err(format!("in lines: {lines_here}"));
        }
        Ok(())
    }

    fn summary(&self) -> String {
        let Tally { calls, shown, refused, with_line_break } = self;
        let refused: Vec<_> = refused.iter().map(|(why, n)| format!("{n} × {why}")).collect();
        format!(
            "{calls} calls as the SDK sees them, {shown} signed alike ({with_line_break} not in \
             lines: a line break), refused: {}",
            refused.join(", ")
        )
    }
}
