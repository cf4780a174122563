"""An assistant with a model, tools and knowledge, on the package `runnel` (`pip install ./clients/python`)."""
import os
from runnel.runner import Endpoint, RunFailed, results

MOST_QUESTIONS = 8  # to the model in one run: a model may call tools without end
endpoint = Endpoint()  # the signing secret is in RUNNER_SECRET

async def messages_of(ctx):  # the history, oldest first, and the question with what the knowledge bases have about it
    question, known = ctx.text, "\n\n".join(await ctx.knowledge.search(ctx.text))
    if known:  # it is data, which others have written: never a message of role `system`
        question = f"<passages>\n{known}\n</passages>\n\n{question}"
    return [*await ctx.history.messages(), {"role": "user", "content": question}]

async def ask(ctx, messages):  # yields the pieces of what the model says, and in the end its message
    answer = ctx.models.stream(messages, tools=ctx.tools.offered())
    async for text in answer:
        yield text
    yield answer.message

@endpoint.runner(
    "plugin:runnel/assistant-python/default",
    label={"en_US": "Assistant (Python)", "zh_Hans": "助手（Python）"},
    permissions={"models": ["stream"], "tools": ["call"], "knowledge_bases": ["retrieve"], "history": ["page"]},
)
async def assist(ctx):
    messages = await messages_of(ctx)
    for _ in range(MOST_QUESTIONS):
        async for said in ask(ctx, messages):
            if isinstance(said, str):
                yield said
        if not said.get("tool_calls"):
            yield results.message(said)
            return
        async for shown in ctx.tools.call_all(said, messages):  # appends the message and the results of the tools
            yield shown
    raise RunFailed("assistant.no_answer", f"the model has called tools {MOST_QUESTIONS} times without an answer")

def serve():
    endpoint.serve(os.environ.get("HOST", "127.0.0.1"), int(os.environ.get("PORT", "9100")))

if __name__ == "__main__":
    serve()
