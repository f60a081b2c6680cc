//! The real client still gives the recorded results, and accepts the translator's output.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use test_support::external_processes::{ask_judge, node_project, run_node, say};

#[test]
fn the_real_client_still_gives_the_recorded_results() {
    let Some(client) = node_project("tests/client") else { return };
    let printed = run_node(&client, &["verify.mjs"]);
    assert!(printed.ends_with(" 0 failed\n"), "{printed}");
}

#[test]
fn every_client_version_accepts_the_chunks_of_the_translator_fixtures() {
    let Some(client) = node_project("tests/client") else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/chunks");
    let mut questions = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        questions.push(question(&path));
    }
    let answers = ask_judge(&client, &questions);
    assert_eq!(answers.len(), questions.len());
    for answer in answers {
        for (version, result) in answer["results"].as_object().unwrap() {
            let case = format!("{} in {version}", answer["case"]);
            assert_eq!(result["rejected"], Value::Null, "{case}");
            assert_eq!(result["resubmits"]["approvals"], false, "{case}");
            assert_eq!(result["resubmits"]["toolCalls"], false, "{case}");
        }
    }
    say(&format!("translator fixtures: {} accepted by every client", questions.len()));
}

/// The chunks of a fixture as the body of a response.
fn question(path: &Path) -> Value {
    let mut question = json!({ "case": path.file_stem().unwrap().to_str() });
    let mut sse = String::new();
    for line in fs::read_to_string(path).unwrap().lines() {
        let mut line: Value = serde_json::from_str(line).unwrap();
        if let Some(chunk) = line.get("chunk") {
            sse.push_str(&format!("data: {chunk}\n\n"));
        } else if line.get("continues").is_some() {
            question["message"] = line["continues"].take();
        } else if let Some(version) = line["options"]["version"].as_str() {
            let client = if version == "v5" { "5.0.0" } else { version.trim_start_matches('v') };
            question["versions"] = json!([client]);
        }
    }
    question["sse"] = sse.into();
    question
}
