#!/usr/bin/env bash
# `check` and `reduce` of streams of 1 GB, beside `wc -l` and `jq -c .` on the same files: time, peak
# memory, and what it stands beside. Needs 4 GB in a scratch folder, jq and GNU time.
#   benches/gigabyte.sh [SCRATCH_FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --features cli
tool=$PWD/target/release/ui-message-stream
cd "${1:-$(mktemp -d)}"

# Steps of one text, in deltas of a word, and one tool call: NAME, words a step, bytes a word.
stream() {
    awk -v words="$2" -v bytes="$3" 'BEGIN {
        word = "word "; while (length(word) < bytes) word = word word; word = substr(word, 1, bytes)
        print "{\"type\":\"start\",\"messageId\":\"msg_1\"}"
        while (written < 1e9) {
            id = "\"id\":\"text_" ++step "\""; call = "\"toolCallId\":\"call_" step "\""
            print "{\"type\":\"start-step\"}"
            print "{\"type\":\"tool-input-start\"," call ",\"toolName\":\"search\"}"
            print "{\"type\":\"tool-input-delta\"," call ",\"inputTextDelta\":\"{\\\"q\\\":\\\"a\\\"}\"}"
            print "{\"type\":\"tool-input-available\"," call ",\"toolName\":\"search\",\"input\":{\"q\":\"a\"}}"
            print "{\"type\":\"tool-output-available\"," call ",\"output\":{\"found\":[1,2,3]}}"
            print "{\"type\":\"text-start\"," id "}"
            line = "{\"type\":\"text-delta\"," id ",\"delta\":\"" word "\"}"
            for (i = 0; i < words; i++) print line
            print "{\"type\":\"text-end\"," id "}"
            print "{\"type\":\"finish-step\"}"
            written += (length(line) + 1) * words + 480
        }
        print "{\"type\":\"finish\",\"finishReason\":\"stop\"}"
    }' > "$1.jsonl"
    sed 's/^/data: /;s/$/\n/' "$1.jsonl" > "$1.sse"
}

measure() {
    /usr/bin/time -f "%es  user %Us  peak %MKB  $*" "$@" > printed
}

stream deltas 400 6
stream ids 0 6
stream huge 250000 4096
for name in deltas ids huge; do
    ids=$(grep -cE '^\{"type":"(text|tool-input)-start"' "$name.jsonl")
    echo "$name.jsonl: $(stat -c %s "$name.jsonl") bytes, $ids ids"
    measure wc -l "$name.jsonl"
    measure jq -c . "$name.jsonl"
    measure "$tool" check "$name.jsonl"
    measure "$tool" check "$name.sse"
    measure "$tool" reduce "$name.jsonl"
    echo "the message: $(stat -c %s printed) bytes"
done
