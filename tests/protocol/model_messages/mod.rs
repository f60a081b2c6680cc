//! UI messages become model messages that providers accept, for any history.

mod brief;
mod deferred;
mod histories;
mod random;
mod upstream;
