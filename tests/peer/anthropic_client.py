"""The official Anthropic client against the gateway's face: reads {"base_url", "token", "model"} and prints what it got."""

import json
import sys

import anthropic

given = json.load(sys.stdin)
model = given["model"]
client = anthropic.Anthropic(base_url=given["base_url"], api_key=given["token"], max_retries=0)
by_bearer = anthropic.Anthropic(base_url=given["base_url"], auth_token=given["token"], max_retries=0)
user = [{"role": "user", "content": "hello"}]
tools = [{"name": "get_weather", "description": "d", "input_schema": {"type": "object"}}]
asking = [{"role": "user", "content": "the weather"}]


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


completion = client.messages.create(model=model, max_tokens=64, messages=user)
with client.messages.stream(model=model, max_tokens=64, messages=user) as stream:
    pieces = "".join(stream.text_stream)
    streamed = stream.get_final_message()
with client.messages.stream(model=model, max_tokens=64, messages=asking, tools=tools) as stream:
    called = stream.get_final_message()
call = next(block for block in called.content if block.type == "tool_use")
after = asking + [
    {"role": "assistant", "content": called.content},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "cold"}]},
]
answer = client.messages.create(model=model, max_tokens=64, messages=after, tools=tools)
counted = client.messages.count_tokens(model=model, messages=user, tools=tools)


def refused(model, text):
    try:
        message = [{"role": "user", "content": text}]
        client.messages.create(model=model, max_tokens=64, messages=message)
    except anthropic.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.body["error"]["type"]]


json.dump(
    {
        "whole": text_of(completion),
        "model": completion.model,
        "pieces": pieces,
        "stop": [completion.stop_reason, streamed.stop_reason, called.stop_reason],
        "usage": streamed.usage.output_tokens > 0 and streamed.usage.input_tokens > 0,
        "call": [call.name, call.input],
        "call_id": call.id,
        "told": text_of(answer),
        "counted": counted.input_tokens > 0,
        "models": [model.id for model in by_bearer.models.list()],
        "model_of_id": by_bearer.models.retrieve(model).id,
        "refused": [refused("forbidden", "hi"), refused(model, "busy")],
    },
    sys.stdout,
)
