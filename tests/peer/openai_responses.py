"""The official OpenAI client against the Responses face: reads {"base_url", "token", "model"} and prints what it got."""

import json
import sys

import openai

given = json.load(sys.stdin)
client = openai.OpenAI(base_url=given["base_url"], api_key=given["token"], max_retries=0)
model = given["model"]
weather = {"type": "function", "name": "get_weather", "description": "d", "strict": False,
           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
patch = {"type": "custom", "name": "apply_patch", "description": "d"}

completion = client.responses.create(model=model, instructions="be kind", input="hello", store=False)
types, pieces, last = [], [], None
for event in client.responses.create(model=model, input="hello", stream=True):
    types.append(event.type)
    pieces += [event.delta] if event.type == "response.output_text.delta" else []
    last = event
asking = [{"role": "user", "content": "the weather"}]
with client.responses.stream(model=model, input=asking, tools=[weather]) as stream:
    stream.until_done()
    called = stream.get_final_response()
call = next(item for item in called.output if item.type == "function_call")
after = asking + [item.to_dict() for item in called.output] + [
    {"type": "function_call_output", "call_id": call.call_id, "output": "cold"}]
answer = client.responses.create(model=model, input=after, tools=[weather])
asking = [{"role": "user", "content": "a patch"}]
patched = client.responses.create(model=model, input=asking, tools=[patch])
custom = next(item for item in patched.output if item.type == "custom_tool_call")
counted = client.responses.input_tokens.count(model=model, input="hello")


def refused(**request):
    try:
        client.responses.create(**request)
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.code, error.param]


json.dump(
    {
        "whole": completion.output_text,
        "model": completion.model,
        "stored": completion.store,
        "types": types,
        "pieces": "".join(pieces),
        "last": last.response.output_text,
        "usage": last.response.usage.total_tokens > 0,
        "call": [call.name, json.loads(call.arguments)],
        "told": answer.output_text,
        "custom": [custom.name, custom.input],
        "tokens": counted.input_tokens,
        "refused": [
            refused(model="forbidden", input="hi"),
            refused(model=model, input="hi", previous_response_id="resp_1"),
            refused(model=model, input="hi", tools=[{"type": "web_search"}]),
            refused(model=model, input="busy"),
        ],
    },
    sys.stdout,
)
