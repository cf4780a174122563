"""Three steps by tools, on the package `runnel`. A retry after a result continues with the step that failed."""
import os
from runnel.runner import Endpoint, results

endpoint = Endpoint()  # the signing secret is in RUNNER_SECRET

@endpoint.runner(
    "plugin:runnel/order-python/default",
    label="Order (Python)",
    permissions={"tools": ["call"]},
    capabilities={"resumable": True, "tool_calling": True},  # `from` of a retry needs `resumable`
)
async def order(ctx):
    earlier = ctx.origin["results"] if ctx.origin else []
    done = {event["data"]["tool_name"] for event in earlier if event["type"] == "tool.call.completed"}
    for step in ("reserve", "charge", "ship"):
        if step in done:
            continue
        yield results.tool_started(step, step, {"order": ctx.text})
        answer = await ctx.tools.call(step, {"order": ctx.text})  # with an idempotency key: the gateway records it
        yield results.tool_completed(step, step, result={"answer": answer})
    yield "Shipped."

def serve():
    endpoint.serve(os.environ.get("HOST", "127.0.0.1"), int(os.environ.get("PORT", "9100")))

if __name__ == "__main__":
    serve()
