#!/usr/bin/env bash
# mcp 2.3.0 and fastmcp 4.2.3 (PyPI), 2026-12-01, Python 3.11.
#
# Behaviour: a tool asks the user by `ctx.elicit(...)`, and the client has a handler for it. Server and client are of one
# version of one library. The call fails before the client is asked: the two agree on the newest revision of the protocol,
# in which a server sends no requests, and `elicit` is not mapped to what takes its place there. With `mode="legacy"` in the
# client, which agrees on an older revision, the same tool gets its answer. Both libraries behave in this way.
#
# What most would guess: what a library offers works between its own server and client as they are by default.
#
# Whom it matters to: servers whose tools ask for consent by `elicit`. They work until a client is updated, which has
# to be asked by an `InputRequiredResult`.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 fastmcp==4.2.3
cat >main.py <<'PY'
import asyncio
import logging

import fastmcp
import mcp
from fastmcp.client.elicitation import ElicitResult
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

logging.disable(logging.CRITICAL)
asked = []


class Consent(BaseModel):
    value: bool


async def answer(*question):
    asked.append(question)
    return ElicitResult(action="accept", content={"value": True})


official, other = MCPServer("bank"), fastmcp.FastMCP("bank")


@official.tool(name="pay")
async def pay_official(ctx: Context) -> str:
    return (await ctx.elicit("Pay?", Consent)).action


@other.tool(name="pay")
async def pay_other(ctx: fastmcp.Context) -> str:
    return (await ctx.elicit("Pay?", Consent)).action


async def main():
    for mode in "auto", "legacy":
        clients = {
            "mcp": mcp.Client(official, elicitation_callback=answer, mode=mode),
            "fastmcp": fastmcp.Client(other, elicitation_handler=answer, mode=mode),
        }
        for name, client in clients.items():
            asked.clear()
            try:
                async with client:
                    seen = (await client.call_tool("pay", {})).content[0].text
            except Exception:
                seen = "failed"
            print(f"{name}, {mode}: {seen}, asked {len(asked)} times")


asyncio.run(main())
PY
printed=$(venv/bin/python main.py)
printf '%s\n' "$printed"
[ "$printed" = "mcp, auto: failed, asked 0 times
fastmcp, auto: failed, asked 0 times
mcp, legacy: accept, asked 1 times
fastmcp, legacy: accept, asked 1 times" ]
