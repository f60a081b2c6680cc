#!/usr/bin/env bash
# langgraph 1.2.24 (PyPI), 2026-12-01, Python 3.11.
#
# Behaviour: a graph waits at `interrupt`, and the answer is an empty object, as from a form whose fields are all optional:
# `Command(resume={})`. The graph asks the same question again, without an error, each time. It takes the object for a list
# of answers by the ids of their questions, and this one has none. An empty list, an empty text, 0 and False are answers, and
# so is an object with fields. `None` raises an UnboundLocalError.
#
# What most would guess: what is passed as `resume` is what `interrupt` returns.
#
# Whom it matters to: servers that pass the answer of a page on as it is, such as the content of an MCP elicitation. The
# user answers, and is asked again. Name the question: `Command(resume={id: answer})`.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check langgraph==1.2.24
cat >main.py <<'PY'
from typing import Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt


class State(TypedDict):
    answer: Any


def ask(state):
    return {"answer": interrupt("Anything to add?")}


builder = StateGraph(State)
builder.add_node("ask", ask)
builder.add_edge(START, "ask")
builder.add_edge("ask", END)
graph = builder.compile(checkpointer=InMemorySaver())
for number, answer in enumerate([{"note": ""}, [], "", 0, False, {}, None, "by its id"]):
    config = {"configurable": {"thread_id": str(number)}}
    asked = graph.invoke({"answer": "none yet"}, config)["__interrupt__"][0]
    resume = {asked.id: {}} if answer == "by its id" else answer
    try:
        result = graph.invoke(Command(resume=resume), config)
        seen = "asks again" if "__interrupt__" in result else f"returns {result['answer']!r}"
    except Exception as error:
        seen = type(error).__name__
    print(f"{answer!r}: {seen}")
PY
printed=$(venv/bin/python main.py)
printf '%s\n' "$printed"
[ "$printed" = "{'note': ''}: returns {'note': ''}
[]: returns []
'': returns ''
0: returns 0
False: returns False
{}: asks again
None: UnboundLocalError
'by its id': returns {}" ]
