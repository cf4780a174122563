"""The assistant with OpenAI's client (`pip install openai`), which needs only an address and a key."""
import openai
from runnel.runner import RunFailed
import assistant_runner

async def ask(ctx, messages):  # yields the text in pieces, then the complete message
    client = openai.AsyncOpenAI(base_url=ctx.host.base_url + "/openai/v1", api_key=ctx.host.token, max_retries=0)
    tools = [{"type": "function", "function": tool} for tool in ctx.tools.offered()]
    model = ctx.models.default("stream")
    try:
        async with client.chat.completions.stream(model=model, messages=messages, tools=tools or openai.omit) as stream:
            async for event in stream:
                if event.type == "content.delta":
                    yield event.delta
            reply = stream.current_completion_snapshot.choices[0].message
    except openai.APIError as error:
        raise RunFailed(error.code or "assistant.model", error.message)
    calls = [{"id": call.id, "type": "function",
              "function": {"name": call.function.name, "arguments": call.function.arguments}}
             for call in reply.tool_calls or []]
    message = {"role": "assistant", "content": reply.content or ""}
    yield {**message, "tool_calls": calls} if calls else message

async def answer(ctx, messages):  # yields text, and calls of tools; a model may call them in eight turns
    for _ in range(8):
        async for reply in ask(ctx, messages):
            if isinstance(reply, str):
                yield reply
        if not reply.get("tool_calls"):
            return
        async for shown in ctx.tools.call_all(reply, messages):  # appends the message and the results of the tools
            yield shown
    raise RunFailed("assistant.no_answer", "the model has called tools in eight turns without an answer")

assistant_runner.answer = answer
if __name__ == "__main__":
    assistant_runner.serve()
