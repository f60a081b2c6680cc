//! [`parameters`]: the schema of a tool's input, in the form that every provider accepts.

use std::fmt;
use std::sync::OnceLock;

use serde_json::{Map, Value, json};

use crate::json::Json;

/// Returns the JSON Schema of a tool's input as adapters send it: of an object with `properties`, without a union at its
/// root, without `null` for a keyword, and with `items` for each list. Providers reject the whole request for any other
/// schema, and some for a `$schema`.
///
/// A union of objects becomes one object that has the properties of all of them: it allows more than the original,
/// against which the input is validated. Returns `None` for a tool that no provider accepts: an input that fits the
/// schema is no object, or the schema refers to a place inside the union at its root.
///
/// The schema may be hostile. At most 10 000 subschemas and properties are read.
pub fn parameters(schema: &Json) -> Option<Json> {
    let merged = Json::from_serialize(&merged(schema.decode().ok()?)?).ok()?;
    let refers_into = |union: &str| merged.as_str().contains(&format!(r##""#/{union}/"##));
    (!UNIONS.into_iter().any(refers_into)).then_some(merged)
}

/// The parameters of the schema for which they were asked first.
#[derive(Clone, Default)]
pub(super) struct LastParameters(OnceLock<(Json, Option<Json>)>);

impl LastParameters {
    /// Returns the parameters of this schema.
    pub(super) fn of(&self, schema: &Json) -> Option<Json> {
        let (known, parameters) = self.0.get_or_init(|| (schema.clone(), self::parameters(schema)));
        // The field of the definition is public.
        if known == schema { parameters.clone() } else { self::parameters(schema) }
    }
}

/// Always equal: the parameters are computed from the schema, which is compared.
impl PartialEq for LastParameters {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for LastParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LastParameters").finish_non_exhaustive()
    }
}

fn merged(schema: Value) -> Option<Value> {
    let mut visits = MAX_VISITS;
    let mut merged = merge(&schema, &schema, MAX_DEPTH, &mut visits)?;
    let root = if let Value::Object(root) = schema { root } else { Map::new() };
    let rest =
        root.into_iter().filter(|(name, value)| !value.is_null() && !LEFT_OUT.contains(&&**name));
    for (name, value) in rest {
        merged.entry(name).or_insert(value);
    }
    merged.insert("type".to_owned(), "object".into());
    merged.entry("properties").or_insert_with(|| Map::new().into());
    tidy(&mut merged, &mut visits);
    Some(merged.into())
}

/// Removes `null` in the place of a keyword, which some serializers write, and gives each list a schema of its items:
/// providers reject the whole request for either.
fn tidy(schema: &mut Map<String, Value>, visits: &mut usize) {
    let Some(left) = visits.checked_sub(1) else { return };
    *visits = left;
    schema.retain(|name, value| !value.is_null() || matches!(&**name, "const" | "default"));
    if names_type(schema.get("type"), "array") && !schema.contains_key("prefixItems") {
        schema.entry("items").or_insert_with(|| Map::new().into());
    }
    for (name, value) in schema {
        let schemas: Vec<&mut Value> = match value {
            Value::Object(schemas) if SCHEMAS_BY_NAME.contains(&&**name) => {
                schemas.values_mut().collect()
            }
            Value::Array(schemas) if SCHEMAS.contains(&&**name) => schemas.iter_mut().collect(),
            schema if SCHEMAS.contains(&&**name) => vec![schema],
            _ => Vec::new(),
        };
        let schemas = schemas.into_iter().filter_map(Value::as_object_mut);
        schemas.for_each(|schema| tidy(schema, visits));
    }
}

/// Whether a value of `type` names this type.
fn names_type(types: Option<&Value>, wanted: &str) -> bool {
    match types {
        Some(Value::Array(types)) => types.iter().any(|kind| kind == wanted),
        types => types.is_some_and(|kind| kind == wanted),
    }
}

/// Returns the properties of a schema of an object, and the required ones, its unions merged. Beyond the depth and the
/// visits that are left, a schema counts as one of any object.
fn merge(
    schema: &Value,
    root: &Value,
    depth: usize,
    visits: &mut usize,
) -> Option<Map<String, Value>> {
    let properties = schema.get("properties").and_then(Value::as_object).map_or(0, Map::len);
    let (Some(depth), Some(left)) = (depth.checked_sub(1), visits.checked_sub(1 + properties))
    else {
        return Some(Map::new());
    };
    *visits = left;
    let types = schema.get("type");
    let may_be_object = types.is_none_or(Value::is_null) || names_type(types, "object");
    if !may_be_object || ["const", "enum"].iter().any(|name| schema.get(name).is_some()) {
        return None;
    }
    let mut merged = Merged::of(schema);
    let target = schema.get("$ref").and_then(|target| target.as_str()?.strip_prefix('#'));
    if let Some(target) = target.and_then(|pointer| root.pointer(pointer)) {
        merged.add_all([Merged(merge(target, root, depth, visits)?)]);
    }
    for name in UNIONS {
        let Some(branches) = schema.get(name).and_then(Value::as_array) else { continue };
        // An input that may be missing is an object or `null`.
        let branches = branches.iter().filter(|branch| branch.get("type") != Some(&"null".into()));
        let branches = branches.map(|branch| Some(Merged(merge(branch, root, depth, visits)?)));
        let branches: Vec<Merged> = branches.collect::<Option<_>>()?;
        match name {
            "allOf" => merged.add_all(branches),
            _ => merged.add_one_of(branches),
        }
    }
    Some(merged.0)
}

/// The properties of an object, and the required ones.
struct Merged(Map<String, Value>);

impl Merged {
    fn of(schema: &Value) -> Self {
        let part = |name: &str, is_it: fn(&Value) -> bool| {
            let value = schema.get(name).filter(|value| is_it(value))?;
            Some((name.to_owned(), value.clone()))
        };
        let properties = part("properties", Value::is_object);
        Merged(properties.into_iter().chain(part("required", Value::is_array)).collect())
    }

    /// Adds schemas that all hold.
    fn add_all(&mut self, schemas: impl IntoIterator<Item = Merged>) {
        for schema in schemas {
            let required = self.required().chain(schema.required()).collect();
            self.add_properties(&schema);
            self.require(required);
        }
    }

    /// Adds schemas of which one holds.
    fn add_one_of(&mut self, schemas: Vec<Merged>) {
        let in_all = |name: &String| {
            schemas.iter().all(|schema| schema.required().any(|required| required == *name))
        };
        let first = schemas.first().into_iter().flat_map(Merged::required);
        let required = self.required().chain(first.filter(in_all)).collect();
        schemas.iter().for_each(|schema| self.add_properties(schema));
        self.require(required);
    }

    fn add_properties(&mut self, other: &Merged) {
        let Some(Value::Object(others)) = other.0.get("properties") else { return };
        let properties = self.0.entry("properties").or_insert_with(|| Map::new().into());
        let Value::Object(properties) = properties else { return };
        for (name, schema) in others {
            match properties.get_mut(name) {
                None => drop(properties.insert(name.clone(), schema.clone())),
                Some(known) if known == schema => {}
                Some(known) => add_choice(known, schema),
            }
        }
    }

    fn required(&self) -> impl Iterator<Item = String> {
        let names = self.0.get("required").and_then(Value::as_array).into_iter().flatten();
        names.filter_map(Value::as_str).map(str::to_owned)
    }

    fn require(&mut self, mut names: Vec<String>) {
        names.sort_unstable();
        names.dedup();
        if !names.is_empty() {
            self.0.insert("required".to_owned(), names.into());
        }
    }
}

/// Adds a schema to those of which a property may have any.
fn add_choice(known: &mut Value, schema: &Value) {
    let is_choice =
        known.as_object().is_some_and(|object| object.len() == 1 && object.contains_key("anyOf"));
    match known.get_mut("anyOf") {
        Some(Value::Array(choices)) if is_choice => {
            if !choices.contains(schema) {
                choices.push(schema.clone());
            }
        }
        _ => *known = json!({ "anyOf": [known.take(), schema] }),
    }
}

/// Keywords of schemas that are merged.
const UNIONS: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// What is merged, and what providers refuse at the root.
const LEFT_OUT: [&str; 8] =
    ["$schema", "$ref", "oneOf", "anyOf", "allOf", "not", "properties", "required"];

/// Keywords with schemas by name.
const SCHEMAS_BY_NAME: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// Keywords with a schema, or a list of schemas.
const SCHEMAS: [&str; 7] =
    ["items", "prefixItems", "additionalProperties", "not", "allOf", "anyOf", "oneOf"];

/// How deeply unions and references are followed. A reference may lead back to itself.
const MAX_DEPTH: usize = 16;

/// How many subschemas and properties are read: references may multiply.
const MAX_VISITS: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ToolDefinition;

    #[test]
    fn every_schema_of_an_object_becomes_one_that_providers_accept() {
        let object = |properties: Value| json!({"type": "object", "properties": properties});
        for (schema, expected) in [
            (json!({}), Some(object(json!({})))),
            (json!(true), Some(object(json!({})))),
            (json!({"type": "object", "required": null}), Some(object(json!({})))),
            (json!({"type": ["object", "null"]}), Some(object(json!({})))),
            (
                json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
                    "properties": {"a": {}}, "required": ["a"], "additionalProperties": false}),
                Some(json!({"type": "object", "properties": {"a": {}}, "required": ["a"],
                    "additionalProperties": false})),
            ),
            // An enum of Rust with fields.
            (
                json!({"description": "Moves.", "oneOf": [
                    {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]},
                    {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]},
                ]}),
                Some(json!({"type": "object", "description": "Moves.",
                    "properties": {"to": {"type": "string"}, "by": {"type": "integer"}}})),
            ),
            // With a tag.
            (
                json!({"anyOf": [
                    {"type": "object", "properties": {"kind": {"const": "a"}, "n": {}}, "required": ["kind"]},
                    {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"]},
                ], "required": null}),
                Some(json!({"type": "object", "required": ["kind"], "properties": {
                    "kind": {"anyOf": [{"const": "a"}, {"const": "b"}]}, "n": {},
                }})),
            ),
            (
                json!({"$ref": "#/$defs/Node", "$defs": {"Node": {"type": "object",
                    "properties": {"next": {"$ref": "#/$defs/Node"}}}}}),
                Some(json!({"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}},
                    "$defs": {"Node": {"type": "object",
                        "properties": {"next": {"$ref": "#/$defs/Node"}}}}})),
            ),
            (
                json!({"allOf": [{"properties": {"a": {}}, "required": ["a"]}, {"required": ["b"]}]}),
                Some(json!({"type": "object", "properties": {"a": {}}, "required": ["a", "b"]})),
            ),
            (
                json!({"not": {"required": ["a"]}, "properties": [], "required": true}),
                Some(object(json!({}))),
            ),
            (
                json!({"anyOf": [{"type": "null"}, {"properties": {"a": {}}, "required": ["a"]}]}),
                Some(json!({"type": "object", "properties": {"a": {}}, "required": ["a"]})),
            ),
            // Each reference would be followed for each of the others.
            (json!({"allOf": vec![json!({"$ref": "#"}); 20]}), Some(object(json!({})))),
            (
                json!({"allOf": vec![json!({"$ref": "#/$defs/B"}); 20_000], "$defs": {"B":
                {"properties": {"a": {}}}}}),
                Some(json!({"type": "object",
                "properties": {"a": {}}, "$defs": {"B": {"properties": {"a": {}}}}})),
            ),
            (
                json!({"anyOf": [{"properties": {"a": {}, "b": {"$ref": "#/anyOf/0/properties/a"}}}]}),
                None,
            ),
            (
                json!({"type": "object", "properties": {
                    "required": {"type": "array", "description": null},
                    "pair": {"type": ["array", "null"], "prefixItems": [{"required": null}]},
                    "rest": {"anyOf": [{"properties": {"a": {"enum": null, "default": null}}}]},
                }, "additionalProperties": {"items": {"type": "array", "items": null}}}),
                Some(json!({"type": "object", "properties": {
                    "required": {"type": "array", "items": {}},
                    "pair": {"type": ["array", "null"], "prefixItems": [{}]},
                    "rest": {"anyOf": [{"properties": {"a": {"default": null}}}]},
                }, "additionalProperties": {"items": {"type": "array", "items": {}}}})),
            ),
            (json!({"type": "string"}), None),
            (json!({"oneOf": [{"const": "all"}, {"type": "object"}]}), None),
            (json!({"enum": ["a"]}), None),
            (json!({"$ref": "#"}), Some(object(json!({})))),
            (json!({"$ref": "#/$defs/Missing"}), Some(object(json!({})))),
        ] {
            let found = parameters(&Json::from_serialize(&schema).unwrap());
            assert_eq!(found.map(|found| found.decode().unwrap()), expected, "{schema}");
        }
    }

    #[test]
    fn the_parameters_of_a_definition_are_computed_once_and_follow_its_schema() {
        let schema = |text| Json::parse(text).unwrap();
        let mut definition = ToolDefinition::new("t", "", schema(r#"{"type": "object"}"#));
        let first = definition.parameters().unwrap();
        let clone = definition.clone();
        assert!(std::ptr::eq(clone.parameters().unwrap().as_str(), first.as_str()));
        definition.input_schema = schema(r#"{"required": ["a"]}"#);
        assert!(definition.parameters().unwrap().as_str().contains("required"));
        definition.input_schema = schema(r#"{"type": "string"}"#);
        assert_eq!(definition.parameters(), None);
    }

    #[test]
    fn a_union_of_many_objects_stays_flat() {
        let variant =
            |n: usize| json!({"properties": {"kind": {"const": n}}, "required": ["kind"]});
        let schema = json!({"oneOf": (0..100).map(variant).collect::<Vec<_>>()});
        let merged = super::merged(schema).unwrap();
        assert_eq!(merged["properties"]["kind"]["anyOf"].as_array().unwrap().len(), 100);
        assert!(crate::Json::from_serialize(&merged).is_ok());
    }
}
