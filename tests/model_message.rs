//! UI messages become model messages that a provider takes, whatever the history looks like.

#[path = "model_message/brief.rs"]
mod brief;
#[path = "model_message/deferred.rs"]
mod deferred;
mod dice;
#[path = "reduce/fields.rs"]
#[expect(dead_code, reason = "other tests need more of it")]
mod fields;
mod fixture_files;
#[path = "model_message/histories.rs"]
mod histories;
#[path = "model_message/made_up.rs"]
mod made_up;
#[path = "reduce/message.rs"]
#[expect(dead_code, reason = "other tests need more of it")]
mod message;
#[path = "model_message/providers.rs"]
mod providers;
#[path = "model_message/random.rs"]
mod random;
#[path = "model_message/upstream.rs"]
mod upstream;
#[path = "reduce/values.rs"]
#[expect(dead_code, reason = "other tests need more of it")]
mod values;
