//! The models of OpenAI and of those who speak as it does: what a provider streams goes through
//! adapter, agent and route to the browser's message, whole; and what goes back to the provider is
//! what it takes.

mod openai {
    pub(crate) mod browser;
    pub(crate) mod provider;

    mod chat_completions;
    mod chat_requests;
    mod failures;
    mod files;
    mod folder;
    mod recordings;
    mod responses;
    mod stored;
    mod thoughts;
}
