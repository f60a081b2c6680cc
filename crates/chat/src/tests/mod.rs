//! Tests of what is private: the simulator of turns.

mod simulator;
