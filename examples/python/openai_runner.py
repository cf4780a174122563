"""The assistant with OpenAI's own client (`pip install openai`), which needs no more than an address and a key."""
import openai
from runnel.runner import RunFailed
import assistant_runner

async def ask(ctx, messages):  # yields the pieces of what the model says, and in the end its message
    client = openai.AsyncOpenAI(base_url=ctx.host.base_url + "/openai/v1", api_key=ctx.host.token, max_retries=0)
    tools = [{"type": "function", "function": tool} for tool in ctx.tools.offered()]
    model = ctx.models.default("stream")
    try:
        async with client.chat.completions.stream(model=model, messages=messages, tools=tools or openai.omit) as stream:
            async for event in stream:
                if event.type == "content.delta":
                    yield event.delta
            said = stream.current_completion_snapshot.choices[0].message
    except openai.APIError as error:
        raise RunFailed(error.code or "assistant.model", error.message)
    calls = [{"id": call.id, "type": "function",
              "function": {"name": call.function.name, "arguments": call.function.arguments}}
             for call in said.tool_calls or []]
    message = {"role": "assistant", "content": said.content or ""}
    yield {**message, "tool_calls": calls} if calls else message

assistant_runner.ask = ask
if __name__ == "__main__":
    assistant_runner.serve()
