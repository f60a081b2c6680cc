//! The format of structured output, which both APIs describe in the same way.

use serde_json::{Map, Value, json};

use ui_message_stream::model::OutputSchema;

/// Returns the output format of a request.
///
/// It requests strict output if the schema can be [converted](to_strict_schema). The agent
/// validates the response against the original schema, including what the conversion drops.
pub(super) fn output_format(output: &OutputSchema) -> Value {
    // Creating the agent fails if a schema cannot be read.
    let mut schema: Value = output.schema.decode().unwrap_or_default();
    if let Value::Object(schema) = &mut schema {
        schema.remove("$schema");
    }
    let is_plain = |schema: &Value| schema["type"] == "object" && schema.get("anyOf").is_none();
    let strict = to_strict_schema(&schema).filter(is_plain);
    json!({
        "name": &*output.name, "strict": strict.is_some(), "schema": strict.unwrap_or(schema),
    })
}

/// Converts a schema to the subset that providers enforce strictly: every object is closed and
/// requires all of its properties. Returns `None` if the schema cannot be expressed in that subset.
///
/// Every value that matches the result also matches the schema, apart from the [dropped
/// keywords](DROPPED_KEYWORDS).
fn to_strict_schema(schema: &Value) -> Option<Value> {
    let schema = schema.as_object()?;
    if let Some(reference) = schema.get("$ref") {
        let is_here = reference.as_str().is_some_and(|reference| reference.starts_with('#'));
        return is_here.then(|| json!({"$ref": reference}));
    }
    let mut strict = Map::new();
    for (keyword, value) in schema {
        match keyword.as_str() {
            "properties" | "$defs" => {
                let all = value.as_object()?.iter();
                let all = all.map(|(name, schema)| Some((name.clone(), to_strict_schema(schema)?)));
                strict.insert(keyword.clone(), Value::Object(all.collect::<Option<_>>()?));
            }
            "items" => drop(strict.insert(keyword.clone(), to_strict_schema(value)?)),
            "anyOf" | "oneOf" if !strict.contains_key("anyOf") => {
                let all = value.as_array()?.iter().map(to_strict_schema).collect::<Option<_>>()?;
                strict.insert("anyOf".into(), Value::Array(all));
            }
            "additionalProperties" if value == false => {}
            "required" => {}
            "format"
                if !value.as_str().is_some_and(|format| SUPPORTED_FORMATS.contains(&format)) => {}
            keyword if DROPPED_KEYWORDS.contains(&keyword) => {}
            keyword if SUPPORTED_KEYWORDS.contains(&keyword) => {
                drop(strict.insert(keyword.into(), value.clone()))
            }
            _ => return None,
        }
    }
    if !TYPE_KEYWORDS.iter().any(|keyword| strict.contains_key(*keyword)) {
        return None;
    }
    if is_object(&strict) {
        if strict.contains_key("anyOf") {
            // If both alternatives and the object are closed, neither allows the properties of the
            // other.
            return None;
        }
        let properties = strict.entry("properties").or_insert_with(|| Map::new().into());
        let names = properties.as_object()?.keys().map(|name| Value::from(name.as_str())).collect();
        strict.insert("required".into(), Value::Array(names));
        strict.insert("additionalProperties".into(), false.into());
    }
    Some(strict.into())
}

fn is_object(schema: &Map<String, Value>) -> bool {
    match schema.get("type") {
        Some(Value::Array(types)) => types.iter().any(|kind| kind == "object"),
        Some(kind) => kind == "object",
        None => schema.contains_key("properties"),
    }
}

/// Keywords that are copied unchanged.
const SUPPORTED_KEYWORDS: [&str; 14] = [
    "type",
    "title",
    "description",
    "enum",
    "const",
    "pattern",
    "format",
    "multipleOf",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minItems",
    "maxItems",
];

/// Every schema needs one of these keywords.
const TYPE_KEYWORDS: [&str; 2] = ["type", "anyOf"];

/// Keywords that providers reject, and whose removal never makes a schema accept fewer values.
const DROPPED_KEYWORDS: [&str; 11] = [
    "$schema",
    "$id",
    "$comment",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "minLength",
    "maxLength",
    "uniqueItems",
];

/// The formats of strings that providers accept. No formats of numbers are accepted.
const SUPPORTED_FORMATS: [&str; 9] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use schemars::{JsonSchema, schema_for};
    use serde_json::{Value, json};

    use super::{output_format, to_strict_schema};
    use ui_message_stream::Json;
    use ui_message_stream::model::OutputSchema;

    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Invoice {
        /// What is to be paid.
        total: u64,
        paid_on: Option<String>,
        kind: Kind,
        #[serde(default)]
        lines: Vec<Line>,
        next: Option<Box<Invoice>>,
    }

    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Line {
        #[schemars(length(max = 80))]
        text: String,
    }

    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    enum Kind {
        /// For goods.
        Goods,
        Service {
            hours: f64,
        },
    }

    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Flattened {
        total: u64,
        #[serde(flatten)]
        kind: Paid,
    }

    #[derive(JsonSchema)]
    #[serde(tag = "paid")]
    #[expect(dead_code, reason = "only its schema is used")]
    enum Paid {
        Cash,
        Card { last: String },
    }

    fn format_of<T: JsonSchema>() -> Value {
        output_format(&OutputSchema::new("answer", Json::from_serialize(&schema_for!(T)).unwrap()))
    }

    #[test]
    fn a_derived_schema_is_converted_to_a_strict_one() {
        let format = format_of::<Invoice>();
        assert_eq!(format["strict"], true);
        let schema = &format["schema"];
        assert_eq!(schema["additionalProperties"], false);
        let required = schema["required"].as_array().unwrap();
        assert!(
            ["kind", "lines", "next", "paid_on", "total"]
                .iter()
                .all(|name| required.contains(&json!(name)))
        );
        let total = json!({"type": "integer", "minimum": 0, "description": "What is to be paid."});
        assert_eq!(schema["properties"]["total"], total);
        assert_eq!(schema["properties"]["kind"], json!({"$ref": "#/$defs/Kind"}));
        assert_eq!(schema["$defs"]["Line"]["properties"]["text"], json!({"type": "string"}));
        let kinds = &schema["$defs"]["Kind"]["anyOf"];
        assert_eq!(kinds[0]["const"], "Goods");
        assert_eq!(kinds[1]["properties"]["Service"]["required"], json!(["hours"]));
    }

    #[test]
    fn a_schema_that_has_no_strict_form_is_sent_unchanged() {
        let format = format_of::<BTreeMap<String, u64>>();
        assert_eq!(format["strict"], false);
        assert_eq!(format["schema"]["additionalProperties"]["format"], "uint64");
        assert_eq!(format["schema"].get("$schema"), None);
        for schema in [
            json!(true),
            json!({}),
            json!({"type": "object", "patternProperties": {}}),
            json!({"type": "object", "properties": {"any": true}}),
            json!({"type": "array", "prefixItems": [{"type": "string"}]}),
            json!({"type": "object", "properties": {"there": {"$ref": "https://example.com/a"}}}),
            self::format_of::<Flattened>()["schema"].clone(),
        ] {
            assert_eq!(to_strict_schema(&schema), None, "{schema}");
        }
    }

    #[test]
    fn a_schema_with_a_choice_or_a_reference_at_the_root_is_not_strict() {
        for schema in [
            json!({"type": "object", "oneOf": [{"type": "object", "properties": {}}]}),
            json!({"oneOf": [{"type": "object", "properties": {}}]}),
            json!({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {}}}}),
        ] {
            let output = OutputSchema::new("answer", Json::from_serialize(&schema).unwrap());
            let format = output_format(&output);
            assert_eq!((&format["strict"], &format["schema"]), (&json!(false), &schema));
        }
    }
}
