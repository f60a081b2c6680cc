#!/usr/bin/env bash
# `check` and `reduce` of streams of 1 GB, beside `wc -l` and `jq -c .` on the same files: time, peak
# memory, and what it stands beside. Needs 10 GB in a scratch folder, jq and GNU time.
#   benches/gigabyte.sh [SCRATCH_FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release -p ui-message-stream-cli
tool=$(realpath "${CARGO_TARGET_DIR:-target}")/release/ui-message-stream
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

# Steps of one tool call, whose input of 20 kB comes in deltas of 200 bytes, and then whole.
inputs() {
    awk 'BEGIN {
        while (length(piece) < 200) piece = piece "word "
        while (length(text) < 20000) text = text piece
        print "{\"type\":\"start\",\"messageId\":\"msg_1\"}"
        while (written < 1e9) {
            call = "\"toolCallId\":\"call_" ++step "\""
            print "{\"type\":\"start-step\"}"
            print "{\"type\":\"tool-input-start\"," call ",\"toolName\":\"write\"}"
            delta = "{\"type\":\"tool-input-delta\"," call ",\"inputTextDelta\":\""
            print delta "{\\\"text\\\":\\\"\"}"
            for (i = 0; i < 100; i++) print delta piece "\"}"
            print delta "\\\"}\"}"
            print "{\"type\":\"tool-input-available\"," call ",\"toolName\":\"write\",\"input\":{\"text\":\"" text "\"}}"
            print "{\"type\":\"tool-output-available\"," call ",\"output\":{\"written\":true}}"
            print "{\"type\":\"finish-step\"}"
            written += 100 * (length(delta) + 203) + length(text) + 550
        }
        print "{\"type\":\"finish\",\"finishReason\":\"stop\"}"
    }' > inputs.jsonl
    sed 's/^/data: /;s/$/\n/' inputs.jsonl > inputs.sse
}

stream deltas 400 6
stream ids 0 6
stream huge 250000 4096
inputs
for name in deltas ids huge inputs; do
    ids=$(grep -cE '^\{"type":"(text|tool-input)-start"' "$name.jsonl")
    echo "$name.jsonl: $(stat -c %s "$name.jsonl") bytes, $ids ids"
    measure wc -l "$name.jsonl"
    measure jq -c . "$name.jsonl"
    measure "$tool" check "$name.jsonl"
    measure "$tool" check "$name.sse"
    measure "$tool" reduce "$name.jsonl"
    echo "the message: $(stat -c %s printed) bytes"
done
