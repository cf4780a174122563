"""Runners of the tests, and the frameworks that serve them. `python runner_app.py FRAMEWORK`."""

import asyncio
import sys
import typing

from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.routing import Mount
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.serving import make_server

from runnel.runner import Endpoint, RunContext, results
from runnel.types import Message

endpoint = Endpoint()


@endpoint.runner("plugin:acme/test/echo", label="Echo", permissions={"state": ["conversation"]})
async def echo(ctx: RunContext) -> typing.AsyncIterator[typing.Any]:
    """Repeats the words, and counts."""
    await ctx.host.json("GET", "run")
    for word in ctx.text.split(" "):
        yield f"{word} "
    if ctx.conversation_id and ctx.state.is_granted:
        yield results.state("count", await ctx.state.get("count", 0) + 1)


@endpoint.runner(
    "plugin:acme/test/agent",
    permissions={
        "models": ["stream", "invoke"],
        "tools": ["call"],
        "knowledge_bases": ["retrieve"],
        "history": ["page"],
        "artifacts": ["metadata", "read", "create"],
        "state": ["conversation"],
    },
)
async def agent(ctx: RunContext) -> typing.AsyncIterator[typing.Any]:
    """Uses each part of the context."""
    messages: list[Message] = [*await ctx.history.messages(), {"role": "user", "content": ctx.text}]
    while True:
        answer = ctx.models.stream(messages, tools=ctx.tools.offered())
        async for text in answer:
            yield text
        if not answer.tool_calls:
            break
        async for result in ctx.tools.call_all(answer.message, messages):
            yield result
    passages = await ctx.knowledge.search(ctx.text)
    version = await ctx.state.put("turns", await ctx.state.get("turns", 0) + 1)
    sizes = [len(await ctx.files.read(one["id"] or "")) for one in ctx.files.attachments]
    stored = await ctx.files.upload(b"a,b\n", "table.csv", "text/csv")
    yield results.file(stored)
    yield results.log(f"history {len(messages)}, passages {len(passages)}, version {version}, files {sizes}")
    yield results.message(answer.message)


@endpoint.runner("plugin:acme/test/question", permissions={"interactions": ["request"]})
async def question(ctx: RunContext) -> typing.AsyncIterator[typing.Any]:
    """Asks a person and waits for the answer."""
    yield results.question(
        {
            "interaction_id": "desk",
            "title": "Which desk?",
            "fallback_text": "Which desk? a or b",
            "fields": [{"id": "desk", "label": "Desk", "type": "text", "required": True}],
            "actions": [{"id": "book", "label": "Book"}],
            "await": True,
        }
    )
    answer = await ctx.interactions.wait("desk")
    yield f"{answer['status']} {answer.get('action_id')} {answer.get('values')}"


@endpoint.runner("plugin:acme/test/endless")
async def endless(_: RunContext) -> typing.AsyncIterator[str]:
    """Lasts until it is cancelled."""
    yield "begun"
    await asyncio.Event().wait()


@endpoint.runner("plugin:acme/test/counter", capabilities={"resumable": True})
async def counter(_: RunContext) -> typing.AsyncIterator[str]:
    """Counts, also while no connection is attached."""
    for number in range(10):
        yield f"{number} "


def serve(framework: str) -> None:
    """Prints the address first, as `Endpoint.serve` does."""
    if framework == "own":
        endpoint.serve(port=0)
    elif framework == "flask":
        app = Flask("test")
        app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/agent": endpoint.wsgi})  # type: ignore[method-assign]
        server = make_server("127.0.0.1", 0, app, threaded=True)
        print(f"listening http://127.0.0.1:{server.server_port}/agent", flush=True)
        server.serve_forever()
    else:
        serve_asgi(framework)


def serve_asgi(framework: str) -> None:
    import socket

    import uvicorn

    apps: dict[str, typing.Any] = {"plain": endpoint, "starlette": Starlette(routes=[Mount("/agent", endpoint)])}
    apps["fastapi"] = FastAPI()
    apps["fastapi"].mount("/agent", endpoint)
    listener = socket.create_server(("127.0.0.1", 0))
    path = "" if framework == "plain" else "/agent"
    print(f"listening http://127.0.0.1:{listener.getsockname()[1]}{path}", flush=True)
    config = uvicorn.Config(apps[framework], log_level="warning")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    serve(sys.argv[1])
