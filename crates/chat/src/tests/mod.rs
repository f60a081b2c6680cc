//! Tests of what is private: the simulator of turns.

pub(crate) mod simulator;
