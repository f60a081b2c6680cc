//! rig's models and agents: what a provider streams goes through rig and this crate to the browser's
//! message, whole, and goes back to the provider as it takes it; what needs a person is asked about,
//! and runs once it is approved.

#[path = "openai/browser.rs"]
mod browser;
#[path = "openai/folder.rs"]
mod folder;
mod dice;
#[path = "reduce/fields.rs"]
#[expect(dead_code, reason = "other tests need more of it")]
mod fields;
#[path = "model_message/made_up.rs"]
mod made_up;
#[path = "reduce/message.rs"]
#[expect(dead_code, reason = "other tests need more of it")]
mod message;
mod real;
#[path = "reduce/values.rs"]
#[expect(dead_code, reason = "other tests need more of it")]
mod values;

mod rig {
    pub(crate) mod agents;
    pub(crate) mod provider;

    mod agent;
    mod agreed;
    mod answers;
    mod chats;
    mod client;
    mod doubled;
    mod histories;
    mod hooks;
    mod hosted;
    mod model;
    mod recordings;
}
