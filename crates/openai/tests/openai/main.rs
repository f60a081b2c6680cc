//! The models of OpenAI and of compatible providers. Everything that a provider streams reaches the
//! browser's message through adapter, agent and route, and the provider accepts every request.

mod as_they_are;
mod chat_completions;
mod chat_requests;
mod failures;
mod files;
mod provider;
mod recordings;
mod responses;
mod stored;
mod thoughts;
