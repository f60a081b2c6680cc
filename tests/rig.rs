//! rig's models and agents: what a provider streams goes through rig and this crate to the browser's
//! message, whole, and goes back to the provider as it takes it; what needs a person is asked about,
//! and runs once it is approved.

#[path = "openai/browser.rs"]
mod browser;

mod rig {
    pub(crate) mod agents;
    pub(crate) mod provider;

    mod agent;
    mod hooks;
    mod model;
    mod recordings;
}
