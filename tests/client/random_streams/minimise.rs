//! Reduces a failing case to a small one.

use serde_json::Value;

use super::case::Case;

/// Removes all elements of a case that are not needed for its failure.
pub(crate) fn minimised(case: &Case, fails: &mut impl FnMut(&Case) -> bool) -> Case {
    let mut smallest = case.clone();
    while let Some(simpler) = simplifications(&smallest).into_iter().find(&mut *fails) {
        smallest = simpler;
    }
    smallest
}

/// Variants of the case, each without one element. Later elements are removed first, because they
/// depend on earlier ones.
fn simplifications(case: &Case) -> Vec<Case> {
    let mut simpler = Vec::new();
    if let Some(text) = &case.message {
        simpler.push(Case { message: None, ..case.clone() });
        let message: Value = serde_json::from_str(text).unwrap();
        for field in ["metadata", "later"] {
            let mut without = message.clone();
            if without.as_object_mut().and_then(|fields| fields.remove(field)).is_some() {
                simpler.push(Case { message: Some(without.to_string()), ..case.clone() });
            }
        }
        for part in 0..message["parts"].as_array().map_or(0, Vec::len) {
            let mut without = message.clone();
            without["parts"].as_array_mut().map(|parts| parts.remove(part));
            simpler.push(Case { message: Some(without.to_string()), ..case.clone() });
        }
    }
    for chunk in (0..case.chunks.len()).rev() {
        let mut without = case.clone();
        without.chunks.remove(chunk);
        simpler.push(without);
    }
    for (at, chunk) in case.chunks.iter().enumerate() {
        // A broken chunk may not be JSON.
        let Ok(Value::Object(fields)) = serde_json::from_str(chunk) else { continue };
        for field in fields.keys() {
            let mut fields = fields.clone();
            fields.remove(field);
            let mut without = case.clone();
            without.chunks[at] = Value::Object(fields).to_string();
            simpler.push(without);
        }
    }
    simpler
}
