//! UI messages become model messages that a provider takes, whatever the history looks like.

#[path = "model_message/brief.rs"]
mod brief;
#[path = "model_message/deferred.rs"]
mod deferred;
mod fixture_files;
#[path = "model_message/histories.rs"]
mod histories;
#[path = "model_message/upstream.rs"]
mod upstream;
