//! Gives `cargo test` and `cargo test --workspace` the same features of third-party packages, so that each of them is
//! compiled once. It holds no code: its manifest is all there is of it.
