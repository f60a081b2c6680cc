#!/usr/bin/env bash
# rig-core 0.44.0 and serde_json 1.0.154, 2026-11-30.
#
# Behaviour: a program that only lists `rig-core` among its dependencies, and calls nothing of it, gets its JSON objects
# back in another order. `serde_json::Value` sorts the keys of an object; rig-core turns on the feature `preserve_order`
# of `serde_json`, and Cargo gives one set of features to every package of a build. So does each library of the program:
# keys keep the order in which they arrived.
#
# The expected behaviour: a model library that is added changes what its own functions do, and the text of other values
# depends on `serde_json` and the program alone.
#
# It matters to programs that hash, sign, cache or compare the text of a `Value`, such as a digest of a tool call's input,
# a key of a prompt cache, or a snapshot of a test; and to libraries that are tested without rig-core and used with it.
# Such programs need a text with an order of their own, such as RFC 8785.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir src
cat >src/main.rs <<'RUST'
fn main() {
    let call: serde_json::Value = serde_json::from_str(r#"{"to":"Ada","amount":5}"#).unwrap();
    println!("{call}");
}
RUST
manifest() {
    cat >Cargo.toml <<TOML
[package]
name = "order"
version = "0.0.0"
edition = "2024"

[dependencies]
serde_json = "=1.0.154"
$1

[workspace]
TOML
}

manifest ''
alone=$(cargo run --quiet)
manifest 'rig-core = { version = "=0.44.0", default-features = false }'
with_rig=$(cargo run --quiet)

printf 'serde_json alone: %s\nwith rig-core:    %s\n' "$alone" "$with_rig"
[ "$alone" = '{"amount":5,"to":"Ada"}' ]
[ "$with_rig" = '{"to":"Ada","amount":5}' ]
