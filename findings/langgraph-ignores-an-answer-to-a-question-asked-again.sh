#!/usr/bin/env bash
# langgraph 1.2.24 (PyPI), 2026-12-01, Python 3.11.
#
# Behaviour: a graph asks by `interrupt`, and the page keeps the id of the question. Before the user decides, another input
# of the same thread arrives, such as the next message of the chat. The graph asks the same question again, under a new id.
# An answer that names the first id raises no error and changes nothing: the graph returns the question once more, as if
# nothing was answered. An answer without an id is taken.
#
# What most would guess: the id of a question stays as long as the graph waits for it, or an unknown id is an error.
#
# Whom it matters to: pages with approvals where users may write while a decision waits. The first card on the page does
# nothing from then on. Compare the id with `get_state(...).interrupts` before an answer is passed on.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check langgraph==1.2.24
cat >main.py <<'PY'
import operator
from typing import Annotated, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt


class State(TypedDict):
    log: Annotated[list, operator.add]


def ask(state):
    return {"log": [interrupt("Pay?")]}


builder = StateGraph(State)
builder.add_node("ask", ask)
builder.add_edge(START, "ask")
builder.add_edge("ask", END)
graph = builder.compile(checkpointer=InMemorySaver())
for message in False, True:
    config = {"configurable": {"thread_id": str(message)}}
    first = graph.invoke({"log": ["hello"]}, config)["__interrupt__"][0].id
    if message:
        second = graph.invoke({"log": ["are you there?"]}, config)["__interrupt__"][0].id
        print("same id:", first == second)
    result = graph.invoke(Command(resume={first: "approved"}), config)
    print("answer to the first id:", result["log"], "waits:", "__interrupt__" in result)
print("answer without an id:", graph.invoke(Command(resume="approved"), config)["log"])
PY
printed=$(venv/bin/python main.py)
printf '%s\n' "$printed"
[ "$printed" = "answer to the first id: ['hello', 'approved'] waits: False
same id: False
answer to the first id: ['hello', 'are you there?'] waits: True
answer without an id: ['hello', 'are you there?', 'approved']" ]
