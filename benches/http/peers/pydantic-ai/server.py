"""`python server.py PORT ANSWERS`: the Vercel AI adapter of pydantic-ai, with the answers of a file as events."""

import json
import sys

import uvicorn
from pydantic_ai import Agent
from pydantic_ai.messages import (
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturnPart,
)
from pydantic_ai.ui.vercel_ai import VercelAIAdapter
from starlette.applications import Starlette
from starlette.routing import Route

port, file = sys.argv[1:3]
with open(file, encoding='utf-8') as answers:
    ANSWERS = json.load(answers)

AGENT = Agent()


async def events(answer):
    """Yields what an agent emits."""
    for step in answer:
        index = 0
        if step['texts']:
            yield PartStartEvent(index=0, part=TextPart(content=''))
            for text in step['texts']:
                yield PartDeltaEvent(index=0, delta=TextPartDelta(content_delta=text))
            yield PartEndEvent(index=0, part=TextPart(content=''.join(step['texts'])))
            index = 1
        calls = []
        for index, call in enumerate(step['calls'], index):
            name = call['tool']
            yield PartStartEvent(index=index, part=ToolCallPart(name, '', call['id']))
            for piece in call['pieces']:
                delta = ToolCallPartDelta(args_delta=piece, tool_call_id=call['id'])
                yield PartDeltaEvent(index=index, delta=delta)
            part = ToolCallPart(name, json.loads(call['input']), call['id'])
            yield PartEndEvent(index=index, part=part)
            calls.append((part, call['output']))
        for part, output in calls:
            yield FunctionToolCallEvent(part, args_valid=True)
            result = ToolReturnPart(part.tool_name, output, part.tool_call_id)
            yield FunctionToolResultEvent(result)


async def respond(request):
    """Answers a chat request."""
    adapter = await VercelAIAdapter.from_request(request, agent=AGENT, sdk_version=6)
    answer = ANSWERS[request.url.path[1:]]
    return adapter.streaming_response(adapter.transform_stream(events(answer)))


APP = Starlette(routes=[Route('/text', respond, methods=['POST']), Route('/outputs', respond, methods=['POST'])])

uvicorn.run(APP, host='127.0.0.1', port=int(port), loop='uvloop', http='httptools', log_level='warning')
