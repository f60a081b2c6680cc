# A chat route as the documentation of pydantic-ai writes it, whose scripted model asks for approval
# to delete a file. It counts how often the file was deleted. It needs `pydantic-ai-slim`, `starlette`
# and `uvicorn`; run `python pydantic_ai_server.py PORT`.
import asyncio
import sys

import uvicorn
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.messages import ModelRequest, UserPromptPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.ui.vercel_ai import VercelAIAdapter
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

effects = 0


async def model(messages, _info):
    last = messages[-1]
    if isinstance(last, ModelRequest) and any(isinstance(part, UserPromptPart) for part in last.parts):
        yield {0: DeltaToolCall("delete_file", '{"path":"notes.txt"}', tool_call_id="call_1")}
    else:
        yield "That is all."


agent = Agent(FunctionModel(stream_function=model), output_type=[str, DeferredToolRequests])


@agent.tool_plain(requires_approval=True)
async def delete_file(path: str) -> str:
    """Deletes a file."""
    global effects
    effects += 1
    await asyncio.sleep(0.4)
    return "deleted"


async def chat(request):
    return await VercelAIAdapter.dispatch_request(request, agent=agent, sdk_version=6)


async def count(_request):
    return PlainTextResponse(str(effects))


app = Starlette(routes=[Route("/api/chat", chat, methods=["POST"]), Route("/effects", count)])
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
