# `just` runs what `.ci/run` runs; the other recipes are for longer looks.

set shell := ["bash", "-euo", "pipefail", "-c"]

default: fmt lint features versions applications docs test

fmt:
    cargo fmt --check

lint:
    cargo clippy --workspace --all-targets --all-features -- -D warnings

# The core alone, and each feature alone: no error, no warning.
features:
    for feature in "" body axum approvals agent testing; do cargo clippy -p ui-message-stream --lib --no-default-features --features "$feature" -- -D warnings; done

# Which Rust versions compiled; compiles with each declared version whose toolchain is installed.
versions:
    node .ci/rust-versions.mjs

# Small programs outside the workspace, one for each set of features, and what they depend on.
applications:
    .ci/applications

# What each of those programs costs: packages, CPU seconds, bytes. Builds each from nothing.
measure:
    .ci/applications --measure

docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --all-features

# The documentation as docs.rs builds it, with a badge for each feature; needs a nightly toolchain.
docs-rs:
    RUSTDOCFLAGS="--cfg docsrs -D warnings" cargo +nightly doc --workspace --no-deps --all-features --exclude demo --exclude chat-openai --exclude traced --exclude fuzz-targets --exclude test-support

# Every target of every package, and the check that none was left out.
test:
    mkdir -p target/ci
    cargo test
    cargo test --workspace --all-features 2>&1 | tee target/ci/tests.log
    node .ci/tests-that-ran.mjs target/ci/tests.log

# The targets that touch JSON numbers and the order of keys, as if a dependency of an application had
# changed how `serde_json` keeps them.
test-unified:
    cargo test -p ui-message-stream -p ui-message-stream-openai -p ui-message-stream-cli --features serde_json/arbitrary_precision,serde_json/preserve_order --lib --bins --test protocol --test client --test approval --test agent --test openai --test cli

# The real client in all its pinned versions, 20 000 random event sequences.
translator-properties:
    MEANING_CASES=20000 cargo test --test client translator_properties -- --nocapture

# The real SDK's signatures, 100 000 random calls, however `serde_json` keeps numbers and keys.
signatures:
    SIGNATURE_CASES=100000 cargo test --test client signatures
    SIGNATURE_CASES=100000 cargo test -p ui-message-stream --features serde_json/arbitrary_precision,serde_json/preserve_order --test client signatures

# Sixteen threads race for many approvals, and processes are killed at each point; needs redis-server.
approvals:
    MEMORY_RACES=100000 cargo test --test approval ledger_store -- --nocapture
    REDIS_RACES=10000 cargo test -p ui-message-stream-redis --test redis -- --nocapture
    KILLS=100 cargo test -p ui-message-stream-redis --test crash_recovery

# A minute of each fuzz target; needs `cargo install cargo-fuzz`.
fuzz-smoke:
    for target in request sse_decode translator; do cargo fuzz run -s none $target -- -max_total_time=60; done

# Re-records the fixtures from the pinned packages.
fixtures:
    cd tests/client && npm ci && node verify.mjs --update

# What follows needs data that not every machine can reach. Where it cannot be had, the recipe says so.

# Packs every package that is published, and compiles what was packed. Nothing is uploaded.
package:
    cargo package --workspace --exclude demo --exclude chat-openai --exclude traced --exclude fuzz-targets --exclude test-support --allow-dirty

# Licences, duplicate versions and sources; needs `cargo install cargo-deny`.
deny:
    cargo deny check bans licenses sources

# Known vulnerabilities; needs `cargo install cargo-audit` and the advisory database (a git repository).
audit:
    cargo audit || { echo "cargo audit failed: a finding, or the advisory database cannot be fetched"; exit 1; }

# Breaking changes since the last release; needs `cargo install cargo-semver-checks`, a nightly or the
# pinned toolchain, and a release on the registry (or BASELINE, a git revision).
semver:
    cargo semver-checks -p ui-message-stream --baseline-rev "${BASELINE:-HEAD~1}"

# The public API as text; needs `cargo install cargo-public-api` and a nightly toolchain.
public-api:
    cargo +nightly public-api -p ui-message-stream --all-features

# Foreign types in public signatures against `allowed_external_types`; needs
# `cargo install cargo-check-external-types` and the nightly toolchain that it names.
external-types:
    for package in . crates/openai crates/rig crates/mcp crates/redis; do cargo +nightly check-external-types --all-features --manifest-path $package/Cargo.toml; done
