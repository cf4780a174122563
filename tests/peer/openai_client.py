"""The official OpenAI client against the gateway's face: reads {"base_url", "token"} and prints what it got."""

import json
import sys

import openai

given = json.load(sys.stdin)
client = openai.OpenAI(base_url=given["base_url"], api_key=given["token"], max_retries=0)
user = [{"role": "user", "content": "hello"}]
tools = [
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "d", "parameters": {"type": "object"}},
    }
]

completion = client.chat.completions.create(model="talker", messages=user)
stream = client.chat.completions.create(
    model="talker", messages=user, stream=True, stream_options={"include_usage": True}
)
pieces, usage = [], None
for chunk in stream:
    usage = chunk.usage or usage
    pieces += [choice.delta.content or "" for choice in chunk.choices]
asking = [{"role": "user", "content": "the weather"}]
with client.chat.completions.stream(model="talker", messages=asking, tools=tools) as stream:
    stream.until_done()
    called = stream.get_final_completion().choices[0]
call = called.message.tool_calls[0]
after = asking + [
    {"role": "assistant", "content": None, "tool_calls": [call.to_dict()]},
    {"role": "tool", "tool_call_id": call.id, "content": "cold"},
]
answer = client.chat.completions.create(model="talker", messages=after, tools=tools)
vectors = client.embeddings.create(model="talker", input=["one", "two"])


def refused(model, text):
    try:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}])
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.code]


json.dump(
    {
        "whole": completion.choices[0].message.content,
        "model": completion.model,
        "pieces": "".join(pieces),
        "usage": usage.total_tokens > 0,
        "call": [call.function.name, json.loads(call.function.arguments), called.finish_reason],
        "told": answer.choices[0].message.content,
        "dimensions": [len(item.embedding) for item in vectors.data],
        "models": [model.id for model in client.models.list()],
        "model_of_id": client.models.retrieve("talker").id,
        "refused": [refused("forbidden", "hi"), refused("talker", "busy")],
    },
    sys.stdout,
)
