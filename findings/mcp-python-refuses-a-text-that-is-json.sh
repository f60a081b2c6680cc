#!/usr/bin/env bash
# mcp 2.3.0 (PyPI), the SDK of the Model Context Protocol for Python, 2026-12-01, Python 3.11.
#
# Behaviour: a tool takes an optional text: `text: str | None`. A text that happens to be a JSON object or list is parsed
# before it is validated, and the call fails because an object is not a valid string. The text `null` arrives as None. With
# `text: str` the same texts arrive as they are, and with `str | list[str]` the text of a list arrives as a list.
# The schema that clients get from `tools/list` says that any string is valid.
#
# What most would guess: the server validates the arguments that the client sent, and a string stays a string.
#
# Whom it matters to: tools that take content, such as the text of a file, a query or a message; and approvals, since the
# value that runs is another one than the value that was shown. Annotate a text as `str`, with '' as its default.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0
cat >main.py <<'PY'
import asyncio

from mcp import Client
from mcp.server.mcpserver import MCPServer

server = MCPServer("notes", log_level="CRITICAL")


@server.tool()
def plain(text: str) -> str:
    return repr(text)


@server.tool()
def optional(text: str | None = None) -> str:
    return repr(text)


@server.tool()
def one_or_more(text: str | list[str]) -> str:
    return repr(text)


async def main():
    async with Client(server) as client:
        for tool in "plain", "optional", "one_or_more":
            seen = []
            for text in 'hello', '{"a": 1}', '["a"]', "null":
                result = await client.call_tool(tool, {"text": text})
                seen.append("refused" if result.is_error else result.content[0].text)
            print(f"{tool}: {' | '.join(seen)}")


asyncio.run(main())
PY
printed=$(venv/bin/python main.py)
printf '%s\n' "$printed"
[ "$printed" = "plain: 'hello' | '{\"a\": 1}' | '[\"a\"]' | 'null'
optional: 'hello' | refused | refused | None
one_or_more: 'hello' | refused | ['a'] | refused" ]
