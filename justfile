# `just` runs the lints and the tests on the components that are installed; `just nightly` runs what takes too long for each
# change. CONTRIBUTING.md says what `.ci/run` does beyond that.

set shell := ["bash", "-euo", "pipefail", "-c"]

export CARGO_TERM_COLOR := "never"

default: fmt lint versions applications docs test

fmt:
    cargo fmt --check
    .ci/mutations --check

lint:
    cargo clippy --workspace --all-targets -- -D warnings

# Which Rust versions compiled; compiles with each declared version whose toolchain is installed.
versions:
    node .ci/rust-versions.mjs

# Small programs outside the workspace for the most used sets of features, and what each set depends on.
applications:
    .ci/applications core default chat

# What takes too long for each change; CONTRIBUTING.md says which change needs which. Needs redis-server,
# Postgres, nginx, Caddy, HAProxy and buildah.
nightly: all-applications servers simulations provider-streams mutations approval-order approvals faults random-kills proxies image json-states canonical-json

# The simulator of chat turns with 100 000 interleavings.
simulations:
    SIMULATIONS=100000 cargo test --release -p ui-message-stream-chat --lib simulator

# Streams of providers that were changed in 1 000 000 ways.
provider-streams:
    STREAM_CASES=1000000 cargo test --release -p ui-message-stream-openai --lib response_stream

# The programs of all sets of features, and both ends of the range of SQLite versions.
all-applications:
    .ci/applications
    .ci/sqlite-versions

# The chat of `examples/adapter.rs` on other web servers.
servers:
    cargo fmt --check --all --manifest-path examples/servers/Cargo.toml
    cargo clippy --all-targets --manifest-path examples/servers/Cargo.toml -- -D warnings
    cargo test --manifest-path examples/servers/Cargo.toml

# What each of those programs costs: packages, CPU seconds, bytes. Builds each from nothing.
measure:
    .ci/applications --measure

docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# The instructions of an event on some paths, against those that were recorded. Needs valgrind.
instructions:
    node .ci/instructions.mjs

# The documentation as docs.rs builds it, with a badge for each feature; needs a nightly toolchain.
docs-rs:
    RUSTDOCFLAGS="--cfg docsrs -D warnings" cargo +nightly doc --workspace --no-deps --all-features --exclude demo --exclude chat-openai --exclude traced --exclude authentication --exclude fuzz-targets --exclude test-support

# Every target of every package side by side, and the check that none was left out.
test:
    .ci/node-packages
    node .ci/tests.mjs
    node .ci/tests-that-ran.mjs

# What core does with JSON, in each of the four states of `serde_json` that a dependency of an application can cause; and
# the models of OpenAI where numbers keep their text.
json-states:
    .ci/json-states --all
    cargo test -p ui-message-stream-openai --features serde_json/arbitrary_precision --test openai

# The real client in all its pinned versions, 20 000 random event sequences.
translator-properties:
    TRANSLATOR_CASES=20000 cargo test --test client translator_properties -- --nocapture

# The canonical form as JavaScript writes it, 100 000 random inputs. `json-states` shows that it is the same in each state of
# `serde_json`.
canonical-json:
    CANONICAL_CASES=100000 cargo test --test client canonical_json

# 4000 answers at once, and 900 half-sent requests and 50 slow clients against timeouts of 30 s, as the
# demo has them.
connections:
    OPEN_STREAMS=4000 cargo test -p ui-message-stream-chat --test chat reconnecting::serve -- --nocapture
    HALF_SENT=900 SLOW_CLIENTS=50 CLIENT_TIMEOUT_MS=30000 cargo test --test http serve -- --nocapture

# Sixteen threads race for many approvals, and processes are killed at each point; needs redis-server
# and Postgres.
approvals:
    MEMORY_RACES=100000 cargo test --test approval ledger_store -- --nocapture
    REDIS_RACES=10000 cargo test -p ui-message-stream-redis --test redis -- --nocapture
    KILLS=100 POINT_KILLS=100 cargo test -p ui-message-stream-redis --test crash_recovery
    SQLITE_RACES=1000 cargo test -p ui-message-stream-sqlite --test sqlite conformance -- --nocapture
    KILLS=300 POINT_KILLS=20 cargo test -p ui-message-stream-sqlite --test crash_recovery
    POSTGRES_RACES=1000 cargo test -p ui-message-stream-postgres -- --nocapture

# 200 lost replies for each kind of operation, and 200 users whose connections to the store have faults;
# needs redis-server and Postgres.
faults:
    LOST_REPLIES=200 FAULTED_USERS=200 cargo test -p ui-message-stream-redis --test redis faults -- --nocapture
    LOST_REPLIES=200 FAULTED_USERS=200 cargo test -p ui-message-stream-postgres --test postgres faults -- --nocapture

# The simulator of chat turns has to notice each deliberate bug of `tests/mutations/`.
mutations:
    .ci/mutations

# The order in which the functions begin that DESIGN.md names in "The way of one approval".
approval-order:
    node .ci/approval-order.mjs

# The demo as two servers: they, their store or both are killed 300 times at random moments, on each store.
random-kills:
    KILLS=300 cargo test -p demo random_kills -- --nocapture

# The configurations of `docs/operations.md` for nginx, Caddy and HAProxy in front of two demos, and the servers of
# `deploy/compose.yaml`. What is not installed is NOT RUN; with `CI=true` that is a failure.
proxies:
    cargo build -p demo --example chat
    node tests/client/proxies.mjs "${CARGO_TARGET_DIR:-target}/debug/examples/chat"

# The image of `deploy/`. NOT RUN without a builder or a registry; with `CI=true` that is a failure.
image:
    .ci/image

# What a store costs, beside memory: the time of an answer with a Redis that is 25 ms away, and the CPU of
# a server with SQLite. Needs redis-server.
store-costs:
    cargo bench -p demo --bench stores

# What a store costs that holds 20 000 chats and 2 000 open questions, or as many as the arguments say, such as
# `sqlite --chats 1000000 --questions 100000`. Needs redis-server and Postgres.
full-stores *arguments:
    cargo bench -p demo --bench scale -- {{ arguments }}

# A minute of each fuzz target; needs `cargo install cargo-fuzz`.
fuzz-smoke:
    for target in request sse_decode translator; do cargo fuzz run -s none $target -- -max_total_time=60; done

# Re-records the fixtures from the pinned packages.
fixtures:
    cd tests/client && npm ci && node verify.mjs --update

# What follows needs programs or data that not every machine can reach. A recipe whose program is missing
# says NOT RUN and why; these are the only checks that may be skipped.

published := "ui-message-stream ui-message-stream-chat ui-message-stream-agent ui-message-stream-openai ui-message-stream-rig ui-message-stream-mcp ui-message-stream-sqlite ui-message-stream-redis ui-message-stream-postgres ui-message-stream-cli"
libraries := "ui-message-stream ui-message-stream-chat ui-message-stream-agent ui-message-stream-openai ui-message-stream-rig ui-message-stream-mcp ui-message-stream-sqlite ui-message-stream-redis ui-message-stream-postgres"

# Packs every package that is published, and compiles what was packed. Nothing is uploaded.
package:
    cargo package {{ prepend("-p ", published) }}

# Licences, duplicate versions and sources.
deny:
    @command -v cargo-deny >/dev/null || { echo "NOT RUN: needs cargo install cargo-deny"; exit 0; }; cargo deny check bans licenses sources

# Known vulnerabilities. The advisory database is a git repository, which has to be reachable.
audit:
    @command -v cargo-audit >/dev/null || { echo "NOT RUN: needs cargo install cargo-audit"; exit 0; }; cargo audit

# Breaking changes since a git revision: BASELINE, or the last tag.
semver:
    @command -v cargo-semver-checks >/dev/null || { echo "NOT RUN: needs cargo install cargo-semver-checks"; exit 0; }; baseline=${BASELINE:-$(git describe --tags --abbrev=0 2>/dev/null || true)}; [ -n "$baseline" ] || { echo "NOT RUN: there is no release yet; set BASELINE to a git revision"; exit 0; }; for package in {{ libraries }}; do cargo semver-checks -p $package --baseline-rev "$baseline"; done

# The public API of each library as text; needs a nightly toolchain.
public-api:
    @command -v cargo-public-api >/dev/null || { echo "NOT RUN: needs cargo install cargo-public-api"; exit 0; }; for package in {{ libraries }}; do cargo +nightly public-api -p $package --all-features; done

# Foreign types in public signatures against `allowed_external_types`; needs the nightly toolchain that
# cargo-check-external-types names.
external-types:
    @command -v cargo-check-external-types >/dev/null || { echo "NOT RUN: needs cargo install cargo-check-external-types"; exit 0; }; for folder in . crates/chat crates/agent crates/openai crates/rig crates/mcp crates/sqlite crates/redis crates/postgres; do cargo +nightly check-external-types --all-features --manifest-path $folder/Cargo.toml; done
