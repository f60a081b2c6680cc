//! Inputs are validated against a schema that the host wrote.

use chat_test_support::calling_model::{Calls, asked, chunks, finishes_without_error, outcomes};
use serde_json::{Value, json};
use ui_message_stream::Json;
use ui_message_stream_agent::{Agent, Tool};

/// Calls a tool with this schema with each of the inputs. Returns the errors.
async fn errors(schema: Value, inputs: &[Value]) -> Vec<String> {
    let schema = Json::from_serialize(&schema).unwrap();
    let tool = Tool::client_executed("read", "Reads a file.", schema);
    let calls: Vec<_> = inputs.iter().map(|input| ("read", input.clone())).collect();
    let page = asked(Agent::new(Calls::of(&calls)).tool(tool), "Go").await;
    let chunks = chunks(&page);
    assert!(finishes_without_error(&chunks), "{chunks:#?}");
    outcomes(&chunks).iter().map(|error| error.as_str().unwrap().to_owned()).collect()
}

fn schema_with_pattern(pattern: &str) -> Value {
    json!({"type": "object", "properties": {"path": {"type": "string", "pattern": pattern}}})
}

#[tokio::test]
async fn an_input_of_any_length_is_validated_completely_against_a_pattern() {
    for pattern in ["^(a+)+$", "^(a|aa)*$", "^(.*)*b$", "^((?!a*b)a)+$", r"^(a*)*(?!\1)b$"] {
        let long = "a".repeat(10_000);
        let inputs = [json!({"path": format!("{long}!")}), json!({"path": 1})];
        let errors = errors(schema_with_pattern(pattern), &inputs).await;
        assert_eq!(errors.len(), 2, "{errors:#?}");
        for (error, reason) in errors.iter().zip(["/path: ", "/path: 1 is not of type"]) {
            assert!(error.starts_with("the input does not fit the schema: "), "{error}");
            assert!(error.contains(reason) && error.len() < 500, "{error}");
        }
    }
}

/// A validator in TypeScript has this pattern for an e-mail address.
#[tokio::test]
async fn a_pattern_may_contain_a_lookahead() {
    let pattern = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$";
    let long_address =
        "a-rather-long-name-of-somebody+with.a.tag@mail.some-department.an-institute.example";
    let inputs = [long_address, "a..b@example.com", "nobody"].map(|path| json!({"path": path}));
    let errors = errors(schema_with_pattern(pattern), &inputs).await;
    assert_eq!(errors.len(), 2, "{errors:#?}");
}

#[tokio::test]
async fn a_recursive_schema_does_not_end_the_process() {
    for schema in [
        json!({"$ref": "#"}),
        json!({"allOf": [{"$ref": "#"}]}),
        json!({
            "anyOf": [{"$ref": "#/$defs/a"}],
            "$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"not": {"$ref": "#/$defs/a"}}},
        }),
    ] {
        errors(schema, &[json!({"path": "notes.txt"})]).await;
    }
}
