# `just` runs what `.ci/run` runs; the other recipes are for longer looks.

default: fmt lint test docs features

fmt:
    cargo fmt --check

lint:
    cargo clippy --all-targets --all-features -- -D warnings

test:
    cargo test --all-features

docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --all-features

# Core alone, and each feature alone.
features:
    cargo check --no-default-features
    cargo check --no-default-features --features body
    cargo check --no-default-features --features axum
    cargo check --no-default-features --features approvals
    cargo check --no-default-features --features agent
    cargo check --no-default-features --features mcp
    cargo check --no-default-features --features openai
    cargo check --no-default-features --features redis
    cargo check --no-default-features --features rig
    cargo check --no-default-features --features testing
    cargo check --no-default-features --features cli

# What all features but `rig` build on; needs that toolchain.
msrv:
    cargo +1.88 check --features cli,mcp,openai,redis,testing

# Needs `cargo install cargo-deny`, and the advisory database from the network.
deny:
    cargo deny check

# A minute of each fuzz target; needs `cargo install cargo-fuzz`.
fuzz-smoke:
    for target in request sse_decode translator; do cargo fuzz run -s none $target -- -max_total_time=60; done

# The real client in all its pinned versions, 20 000 random event sequences.
meaning:
    MEANING_CASES=20000 cargo test --test meaning -- --nocapture

# Everything once more, as if a dependency had changed how `serde_json` keeps numbers and keys.
test-unified:
    cargo test --all-features --features serde_json/arbitrary_precision,serde_json/preserve_order

# The real SDK's signatures, 100 000 random calls, however `serde_json` keeps numbers and keys.
signatures:
    SIGNATURE_CASES=100000 cargo test --test signature
    SIGNATURE_CASES=100000 cargo test --features serde_json/arbitrary_precision,serde_json/preserve_order --test signature

# Sixteen contenders for many approvals, and a hundred processes killed at each point; needs
# redis-server.
approvals:
    MEMORY_RACES=100000 cargo test --all-features --test ledger_store -- --nocapture
    REDIS_RACES=10000 cargo test --all-features --test redis -- --nocapture
    KILLS=100 cargo test --all-features --test killed

# Re-records the fixtures from the pinned packages.
fixtures:
    cd tests/client && npm ci && node verify.mjs --update
