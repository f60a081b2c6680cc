//! Reduces a failing case to a small one.

use serde_json::Value;

use super::case::{Case, Origin};

/// Removes all elements of a case that are not needed for its failure.
pub(crate) fn minimised(case: &Case, fails: &mut impl FnMut(&Case) -> bool) -> Case {
    let mut smallest = case.clone();
    for length in 0..smallest.events.len() {
        let mut shorter = smallest.clone();
        shorter.events.truncate(length);
        if fails(&shorter) {
            smallest = shorter;
            break;
        }
    }
    let mut again = true;
    while again {
        again = false;
        for simpler in simplifications(&smallest) {
            if fails(&simpler) {
                smallest = simpler;
                again = true;
                break;
            }
        }
    }
    smallest
}

/// Variants of the case, each without one element. Later elements are removed first, because they
/// depend on earlier ones.
fn simplifications(case: &Case) -> Vec<Case> {
    let mut simpler = Vec::new();
    for event in (0..case.events.len()).rev() {
        let mut without = case.clone();
        without.events.remove(event);
        simpler.push(without);
    }
    if case.metadata.is_some() {
        simpler.push(Case { metadata: None, ..case.clone() });
    }
    if let Origin::Continued(message) = &case.origin {
        simpler.push(Case { origin: Origin::New("msg_1".to_owned()), ..case.clone() });
        let parts = message["parts"].as_array().map_or(0, Vec::len);
        for part in (0..parts).rev() {
            let mut message = message.clone();
            if let Value::Array(parts) = &mut message["parts"] {
                parts.remove(part);
            }
            simpler.push(Case { origin: Origin::Continued(message), ..case.clone() });
        }
    }
    simpler
}
