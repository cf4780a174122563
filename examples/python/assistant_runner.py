"""An assistant with a model, tools and knowledge, on the package `runnel` (`pip install ./clients/python`)."""
import os
from runnel.runner import Endpoint

endpoint = Endpoint()  # the signing secret is in RUNNER_SECRET

async def messages_of(ctx):  # the history, oldest first, and the question with passages of the knowledge bases
    question, passages = ctx.text, "\n\n".join(await ctx.knowledge.search(ctx.text))
    if passages:  # data from other authors: never a message of role `system`
        question = f"<passages>\n{passages}\n</passages>\n\n{question}"
    return [*await ctx.history.messages(), {"role": "user", "content": question}]

async def answer(ctx, messages):  # yields text, and calls of tools; a model may call them in eight turns
    # A new attempt after a loss of this process repeats no call before its checkpoint.
    async for one in ctx.agent_loop(messages, max_turns=8, checkpoints=True):
        yield one

@endpoint.runner(
    "plugin:runnel/assistant-python/default",
    label={"en_US": "Assistant (Python)", "zh_Hans": "助手（Python）"},
    permissions={"models": ["stream"], "tools": ["call"], "knowledge_bases": ["retrieve"], "history": ["page"],
                 "state": ["conversation"]},
    capabilities={"resumable": True},  # works on while a gateway restarts
)
async def assist(ctx):
    async for one in answer(ctx, await messages_of(ctx)):
        yield one

def serve():
    endpoint.serve(os.environ.get("HOST", "127.0.0.1"), int(os.environ.get("PORT", "9100")))

if __name__ == "__main__":
    serve()
