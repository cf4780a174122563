"""The official OpenAI client with agents as models: reads {"base_url", "key"} and prints what it got."""

import json
import sys

import openai

given = json.load(sys.stdin)
client = openai.OpenAI(base_url=given["base_url"], api_key=given["key"], max_retries=0)
user = [{"role": "user", "content": "a table"}]

completion = client.chat.completions.create(model="main", messages=user)
pieces, streamed_finish = [], None
for chunk in client.chat.completions.create(model="main", messages=user, stream=True):
    for choice in chunk.choices:
        pieces.append(choice.delta.content or "")
        streamed_finish = choice.finish_reason or streamed_finish


def refused(**more):
    try:
        client.chat.completions.create(**{"model": "main", "messages": user, **more})
    except openai.APIStatusError as error:
        return error


absent, tools = refused(model="absent"), refused(tools=[{"type": "function", "function": {"name": "f"}}])
json.dump(
    {
        "text": completion.choices[0].message.content,
        "finish": completion.choices[0].finish_reason,
        "model": completion.model,
        "pieces": "".join(pieces),
        "streamed_finish": streamed_finish,
        "models": [model.id for model in client.models.list()],
        "refused": [type(absent).__name__, absent.status_code, absent.code],
        "invalid": [type(tools).__name__, tools.status_code, tools.param],
    },
    sys.stdout,
)
