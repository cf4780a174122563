"""Google's official client against the gateway's face: reads {"base_url", "token", "model"} and prints what it got."""

import json
import sys

from google import genai
from google.genai import errors, types

given = json.load(sys.stdin)
model = given["model"]
once = types.HttpRetryOptions(attempts=1)
options = types.HttpOptions(base_url=given["base_url"], retry_options=once)
client = genai.Client(api_key=given["token"], http_options=options)
parameters = {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}}
weather = types.FunctionDeclaration(name="get_weather", description="d", parameters=parameters)
manual = types.AutomaticFunctionCallingConfig(disable=True)
config = types.GenerateContentConfig(
    tools=[types.Tool(function_declarations=[weather])],
    automatic_function_calling=manual,
    thinking_config=types.ThinkingConfig(include_thoughts=True),
)

completion = client.models.generate_content(model=model, contents="hello")
streamed = list(client.models.generate_content_stream(model=model, contents="hello"))
chat = client.chats.create(model=model, config=config)
called = list(chat.send_message_stream("the weather"))
call = called[-1].function_calls[0]
reasoning = [part.text for chunk in called for part in chunk.candidates[0].content.parts if part.thought]
result = types.Part.from_function_response(name=call.name, response={"output": "cold"})
result.function_response.id = call.id
answer = chat.send_message(result)
counted = client.models.count_tokens(model=model, contents="hello")


def refused(model, text):
    try:
        client.models.generate_content(model=model, contents=text)
    except errors.APIError as error:
        return [type(error).__name__, error.code, error.status]


def broken():
    """Texts of a stream that ends with an error, and the error."""
    texts = []
    try:
        for chunk in client.models.generate_content_stream(model=model, contents="break"):
            texts.append(chunk.text)
    except errors.APIError as error:
        return [texts, error.status]
    return [texts, None]


json.dump(
    {
        "complete": completion.text,
        "model": completion.model_version,
        "pieces": "".join(chunk.text or "" for chunk in streamed),
        "stop": [completion.candidates[0].finish_reason, streamed[-1].candidates[0].finish_reason],
        "usage": streamed[-1].usage_metadata.prompt_token_count > 0
        and streamed[-1].usage_metadata.candidates_token_count > 0,
        "call": [call.name, call.args],
        "call_id": call.id,
        "reasoning": "".join(reasoning),
        "answer": answer.text,
        "counted": counted.total_tokens > 0,
        "models": [model.name for model in client.models.list()],
        "model_of_id": client.models.get(model=model).name,
        "refused": [refused("forbidden", "hi"), refused(model, "busy")],
        "broken": broken(),
    },
    sys.stdout,
)
