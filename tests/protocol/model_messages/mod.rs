//! UI messages become model messages that a provider takes, whatever the history looks like.

mod brief;
mod deferred;
mod histories;
mod random;
mod upstream;
