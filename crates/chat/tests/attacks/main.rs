//! Attacks on the routes: recorded, mutated and random requests.

mod attack_server;
mod fixture_attacks;
mod hostile_histories;
mod mutated_requests;
mod mutations;
mod panics;
