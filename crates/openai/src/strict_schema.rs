//! An answer in a structure, as both requests ask for it.

use serde_json::{Map, Value, json};

use ui_message_stream::agent::OutputSchema;

/// The format of the answer. A model can be held to it strictly if its schema can be
/// [said so](strictly); what that leaves out, the answer is held against here.
pub(super) fn format(output: &OutputSchema) -> Value {
    // A schema that cannot be read was refused when the agent was made.
    let mut schema: Value = output.schema.to().unwrap_or_default();
    if let Value::Object(schema) = &mut schema {
        schema.remove("$schema");
    }
    let is_plain = |schema: &Value| schema["type"] == "object" && schema.get("anyOf").is_none();
    let strict = strictly(&schema).filter(is_plain);
    json!({
        "name": &*output.name, "strict": strict.is_some(), "schema": strict.unwrap_or(schema),
    })
}

/// A schema in the keywords that are taken strictly, where every object is closed and has all of its
/// properties; `None` if it cannot be said in those. Every value that fits what takes part in it fits
/// the schema too, but for the keywords that are [left out](LEFT_OUT).
fn strictly(schema: &Value) -> Option<Value> {
    let schema = schema.as_object()?;
    if let Some(reference) = schema.get("$ref") {
        let is_here = reference.as_str().is_some_and(|reference| reference.starts_with('#'));
        return is_here.then(|| json!({"$ref": reference}));
    }
    let mut said = Map::new();
    for (keyword, value) in schema {
        match keyword.as_str() {
            "properties" | "$defs" => {
                let all = value.as_object()?.iter();
                let all = all.map(|(name, schema)| Some((name.clone(), strictly(schema)?)));
                said.insert(keyword.clone(), Value::Object(all.collect::<Option<_>>()?));
            }
            "items" => drop(said.insert(keyword.clone(), strictly(value)?)),
            "anyOf" | "oneOf" if !said.contains_key("anyOf") => {
                let all = value.as_array()?.iter().map(strictly).collect::<Option<_>>()?;
                said.insert("anyOf".into(), Value::Array(all));
            }
            "additionalProperties" if value == false => {}
            "required" => {}
            "format" if !value.as_str().is_some_and(|format| FORMATS.contains(&format)) => {}
            keyword if LEFT_OUT.contains(&keyword) => {}
            keyword if TAKEN.contains(&keyword) => drop(said.insert(keyword.into(), value.clone())),
            _ => return None,
        }
    }
    if !SAY_WHAT_IT_IS.iter().any(|keyword| said.contains_key(*keyword)) {
        return None;
    }
    if is_object(&said) {
        if said.contains_key("anyOf") {
            // Closed on both sides, neither would let the properties of the other in.
            return None;
        }
        let properties = said.entry("properties").or_insert_with(|| Map::new().into());
        let names = properties.as_object()?.keys().map(|name| Value::from(name.as_str())).collect();
        said.insert("required".into(), Value::Array(names));
        said.insert("additionalProperties".into(), false.into());
    }
    Some(said.into())
}

fn is_object(schema: &Map<String, Value>) -> bool {
    match schema.get("type") {
        Some(Value::Array(types)) => types.iter().any(|kind| kind == "object"),
        Some(kind) => kind == "object",
        None => schema.contains_key("properties"),
    }
}

/// Keywords that are taken as they are.
const TAKEN: [&str; 14] = [
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

/// One of these every schema needs.
const SAY_WHAT_IT_IS: [&str; 2] = ["type", "anyOf"];

/// Keywords that are refused, and without which a schema takes no less.
const LEFT_OUT: [&str; 11] = [
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

/// What a string may be said to be; of numbers there is no such thing.
const FORMATS: [&str; 9] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use schemars::{JsonSchema, schema_for};
    use serde_json::{Value, json};

    use super::{format, strictly};
    use ui_message_stream::Json;
    use ui_message_stream::agent::OutputSchema;

    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "its schema is all that is looked at")]
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
    #[expect(dead_code, reason = "its schema is all that is looked at")]
    struct Line {
        #[schemars(length(max = 80))]
        text: String,
    }

    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "its schema is all that is looked at")]
    enum Kind {
        /// For goods.
        Goods,
        Service {
            hours: f64,
        },
    }

    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "its schema is all that is looked at")]
    struct Flattened {
        total: u64,
        #[serde(flatten)]
        kind: Paid,
    }

    #[derive(JsonSchema)]
    #[serde(tag = "paid")]
    #[expect(dead_code, reason = "its schema is all that is looked at")]
    enum Paid {
        Cash,
        Card { last: String },
    }

    fn asked<T: JsonSchema>() -> Value {
        format(&OutputSchema::new("answer", Json::of(&schema_for!(T)).unwrap()))
    }

    #[test]
    fn what_serde_derives_is_held_to_strictly() {
        let asked = asked::<Invoice>();
        assert_eq!(asked["strict"], true);
        let schema = &asked["schema"];
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
    fn what_cannot_be_said_strictly_is_sent_as_it_is() {
        let asked = asked::<BTreeMap<String, u64>>();
        assert_eq!(asked["strict"], false);
        assert_eq!(asked["schema"]["additionalProperties"]["format"], "uint64");
        assert_eq!(asked["schema"].get("$schema"), None);
        for schema in [
            json!(true),
            json!({}),
            json!({"type": "object", "patternProperties": {}}),
            json!({"type": "object", "properties": {"any": true}}),
            json!({"type": "array", "prefixItems": [{"type": "string"}]}),
            json!({"type": "object", "properties": {"there": {"$ref": "https://example.com/a"}}}),
            self::asked::<Flattened>()["schema"].clone(),
        ] {
            assert_eq!(strictly(&schema), None, "{schema}");
        }
    }

    #[test]
    fn a_choice_at_the_root_is_not_held_to() {
        for schema in [
            json!({"type": "object", "oneOf": [{"type": "object", "properties": {}}]}),
            json!({"oneOf": [{"type": "object", "properties": {}}]}),
            json!({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {}}}}),
        ] {
            let output = OutputSchema::new("answer", Json::of(&schema).unwrap());
            let asked = format(&output);
            assert_eq!((&asked["strict"], &asked["schema"]), (&json!(false), &schema));
        }
    }
}
