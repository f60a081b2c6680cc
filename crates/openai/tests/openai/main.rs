//! The models of OpenAI and of those who speak as it does: what a provider streams goes through
//! adapter, agent and route to the browser's message, whole; and what goes back to the provider is
//! what it takes.

mod chat_completions;
mod chat_requests;
mod failures;
mod files;
mod provider;
mod recordings;
mod responses;
mod stored;
mod thoughts;
