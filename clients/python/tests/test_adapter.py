"""The runner adapter without a network. tests/test_gateway.py serves it to the real gateway."""

import asyncio
import contextlib
import itertools
import json
import time
import typing

import httpx
import pytest

from runnel import ApiError, Webhook
from runnel.runner import Endpoint, RunContext, RunFailed, results
from runnel.runner._unverified import UnverifiedBytes
from runnel.runner.endpoint import Rejection, Request, Response

pytestmark = pytest.mark.anyio
SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
ID = "plugin:acme/test/default"
_numbers = itertools.count()


def request(method: str, path: str, body: typing.Any = None, message_id: str | None = None) -> Request:
    data = b"" if body is None else json.dumps(body).encode()
    return Request(method, path, Webhook(SECRET).sign(message_id or f"m_{next(_numbers)}", data), data)


def run_request(run_id: str = "r-1", **context: typing.Any) -> dict[str, typing.Any]:
    context = {
        "run_id": run_id,
        "event": {"event_id": "e-1", "event_type": "message.received", "source": "api"},
        "input": {"text": "hello"},
        "resources": {"models": [{"model_id": "m", "operations": ["stream"]}]},
        "runtime": {"deadline_at": time.time() + 60},
        **context,
    }
    host = {"base_url": "http://host/host/v1", "token": "t-1", "token_expires_at": int(time.time()) + 900}
    return {"runner_id": ID, "runner_name": "default", "context": context, "host": host}


def endpoint(function: typing.Any, **options: typing.Any) -> Endpoint:
    made = Endpoint(SECRET, **options)
    made.runner(ID)(function)
    return made


async def started(made: Endpoint, **context: typing.Any) -> Response:
    response = await made.handle(request("POST", "/runs", run_request(**context)))
    assert response.status == 200, response.body
    return response


async def results_of(response: Response) -> list[dict[str, typing.Any]]:
    assert response.frames is not None
    text = b"".join([frame async for frame in response.frames]).decode()
    found = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")]
    assert [one["sequence"] for one in found] == list(range(1, len(found) + 1))
    assert all(one["run_id"] == "r-1" for one in found)
    return found


async def outcome(function: typing.Any, **options: typing.Any) -> list[tuple[str, typing.Any]]:
    """Type and data of each result."""
    return [(one["type"], one["data"]) for one in await results_of(await started(endpoint(function, **options)))]


async def test_text_becomes_deltas_and_one_message() -> None:
    async def words(ctx: RunContext) -> typing.AsyncIterator[str]:
        yield ctx.text
        yield ""
        yield " you"

    assert await outcome(words) == [
        ("message.delta", {"chunk": {"role": "assistant", "content": "hello"}}),
        ("message.delta", {"chunk": {"role": "assistant", "content": " you"}}),
        ("message.completed", {"message": {"role": "assistant", "content": "hello you"}, "file_ids": []}),
        ("run.completed", {"finish_reason": "stop"}),
    ]


async def test_returned_text_is_a_message() -> None:
    async def answer(ctx: RunContext) -> str:
        return ctx.text

    assert [kind for kind, _ in await outcome(answer)] == ["message.completed", "run.completed"]


async def test_own_message_and_end_replace_the_adapters() -> None:
    async def own(_: RunContext) -> typing.AsyncIterator[typing.Any]:
        yield "a"
        yield results.message("A")
        yield results.completed(outcome="need_input")
        yield "never sent"

    found = await outcome(own)
    assert [kind for kind, _ in found] == ["message.delta", "message.completed", "run.completed"]
    assert found[-1][1] == {"finish_reason": "stop", "outcome": "need_input"}


@pytest.mark.parametrize(
    ("raised", "code", "text"),
    [
        (RunFailed("acme.full", "no capacity"), "acme.full", "no capacity"),
        (ApiError(403, "unauthorized", "not granted"), "unauthorized", "not granted"),
        (ValueError("password 123"), "runner.exception", "ValueError"),
    ],
)
async def test_exceptions_fail_the_run(raised: Exception, code: str, text: str) -> None:
    async def broken(_: RunContext) -> typing.AsyncIterator[str]:
        yield "a"
        raise raised

    found = await outcome(broken)
    assert [kind for kind, _ in found] == ["message.delta", "run.failed"]
    assert found[-1][1]["code"] == code
    assert text in found[-1][1]["message"]
    assert "123" not in str(found)


@pytest.mark.parametrize("data", [{}, {"chunk": "text"}])
async def test_delta_without_chunk_names_the_valid_result(data: typing.Any, caplog: pytest.LogCaptureFixture) -> None:
    async def wrong(_: RunContext) -> typing.AsyncIterator[results.Result]:
        yield {"type": "message.delta", "data": data}

    [(kind, failure)] = await outcome(wrong)
    assert (kind, failure["code"]) == ("run.failed", "runner.exception")
    assert "results.delta" in caplog.text


@pytest.mark.parametrize("item", [7, {"type": "x"}, results.state("k", float("nan")), results.state("k", object())])
async def test_invalid_result_fails_the_run(item: typing.Any) -> None:
    async def wrong(_: RunContext) -> typing.AsyncIterator[typing.Any]:
        yield item

    [(kind, data)] = await outcome(wrong)
    assert (kind, data["code"]) == ("run.failed", "runner.exception")


async def test_halves_of_surrogate_pairs_are_sent() -> None:
    async def half(_: RunContext) -> str:
        return "\ud83d"

    assert (await outcome(half))[0][1]["message"]["content"] == "\ud83d"


async def test_missing_model_names_the_policy_to_change() -> None:
    async def ask(ctx: RunContext) -> typing.AsyncIterator[str]:
        async for text in ctx.models.stream("hi"):
            yield text

    found = await results_of(await started(endpoint(ask), resources={}))
    assert found[0]["data"]["code"] == "runner.no_model"
    assert "resource_policy.models" in found[0]["data"]["message"]


async def use_everything(ctx: RunContext) -> typing.AsyncIterator[str]:
    for _ in range(2):
        await ctx.history.messages()
        await ctx.knowledge.search("Runnel")
        ctx.tools.offered()
        await ctx.state.get("count")
    yield "done"


@pytest.mark.parametrize(
    ("permissions", "lacking"),
    [
        ({}, ["history page", "knowledge_bases retrieve", "tools call", "state conversation"]),
        (
            {"history": ["search"], "tools": ["call"], "storage": ["plugin"]},
            ["history page", "knowledge_bases retrieve"],
        ),
        ({"history": ["page"], "tools": ["call"], "knowledge_bases": ["retrieve"], "state": ["conversation"]}, []),
    ],
)
async def test_calls_without_grant_name_the_missing_permission(
    permissions: typing.Any, lacking: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    made = Endpoint(SECRET)
    made.runner(ID, permissions=permissions)(use_everything)
    found = await results_of(await started(made))
    logged = [one["data"] for one in found if one["type"] == "processor.log"]
    assert [one["level"] for one in logged] == ["warning"] * len(lacking)
    assert [one["text"] for one in logged] == [
        record.getMessage().removeprefix("run r-1: ") for record in caplog.records
    ]
    for name, one in zip(lacking, logged, strict=True):
        assert f"the manifest lacks permissions.{name})" in one["text"]


async def test_failed_runs_name_the_missing_permission_first() -> None:
    async def remember(ctx: RunContext) -> None:
        await ctx.history.messages()
        raise RunFailed("acme.empty", "nothing to remember")

    found = await outcome(remember)
    assert [kind for kind, _ in found] == ["processor.log", "run.failed"]


async def test_silent_runs_send_keep_alives() -> None:
    release = asyncio.Event()

    async def slow(_: RunContext) -> str:
        await release.wait()
        return "late"

    response = await started(endpoint(slow, keep_alive_seconds=0.01))
    assert response.frames is not None
    assert [await anext(response.frames) for _ in range(3)] == [b": run\n\n", b": alive\n\n", b": alive\n\n"]
    release.set()
    assert (await results_of(response))[-1]["type"] == "run.completed"


async def test_cancel_ends_the_function_and_the_run() -> None:
    ended = asyncio.Event()

    async def endless(_: RunContext) -> typing.AsyncIterator[str]:
        yield "a"
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    made = endpoint(endless)
    response = await started(made)
    assert response.frames is not None
    assert [(await anext(response.frames))[:5] for _ in range(2)] == [b": run", b"event"]
    assert (await made.handle(request("POST", "/runs/r-1/cancel", {"run_id": "r-1"}))).status == 202
    last = await anext(response.frames)
    assert b'"code": "cancelled"' in last
    assert ended.is_set()
    with pytest.raises(StopAsyncIteration):
        await anext(response.frames)
    assert (await made.handle(request("POST", "/runs/r-1/cancel", {"run_id": "r-1"}))).status == 404


async def test_function_that_ignores_its_cancel_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.runner.execution._CANCEL_GRACE", 0.01)
    release = asyncio.Event()

    async def deaf(_: RunContext) -> None:
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()

    made = endpoint(deaf)
    response = await started(made)
    assert response.frames is not None
    await anext(response.frames)
    await made.handle(request("POST", "/runs/r-1/cancel", {"run_id": "r-1"}))
    assert (await results_of_rest(response))["data"]["code"] == "cancelled"
    release.set()


async def results_of_rest(response: Response) -> dict[str, typing.Any]:
    assert response.frames is not None
    frames = [frame async for frame in response.frames]
    return json.loads(frames[-1].decode().split("data: ")[1])


async def test_closed_response_ends_the_function() -> None:
    ended = asyncio.Event()

    async def endless(_: RunContext) -> typing.AsyncIterator[str]:
        try:
            yield "a"
            await asyncio.Event().wait()
        finally:
            ended.set()

    response = await started(endpoint(endless))
    assert response.frames is not None
    await anext(response.frames)
    await anext(response.frames)
    await response.frames.aclose()
    assert ended.is_set()


async def test_run_is_live_until_its_response_closes() -> None:
    async def quick(_: RunContext) -> str:
        return "a"

    made = endpoint(quick, max_runs=1)
    response = await started(made)
    again = await made.handle(request("POST", "/runs", run_request()))
    full = await made.handle(request("POST", "/runs", run_request("r-2")))
    assert (again.status, full.status, full.headers["retry-after"]) == (409, 503, "1")
    assert response.frames is not None
    # Its events were never read.
    await response.frames.aclose()
    assert (await results_of(await started(made)))[-1]["type"] == "run.completed"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request("GET", "/runners"), 200),
        (Request("GET", "/healthz", {}, b""), 200),
        (request("POST", "/", {"action": "list_runners"}), 200),
        (request("POST", "/", {"action": "dance"}), 400),
        (request("POST", "/", []), 400),
        (request("POST", "/runs", {"runner_id": ID}), 400),
        (request("POST", "/runs", {**run_request(), "runner_id": "plugin:a/b/c"}), 404),
        (request("GET", "/runs"), 404),
        (request("POST", "/runs/r-9/cancel", {"run_id": "r-9"}), 404),
        (Request("GET", "/runners", {}, b""), 401),
        (Request("POST", "/runs", {}, b"{}"), 401),
        (request("POST", "/", {"action": "list_runners", "pad": "x" * 2000}), 413),
    ],
)
async def test_routes_answer_with_their_status(sent: Request, status: int) -> None:
    async def quick(_: RunContext) -> str:
        return "a"

    response = await endpoint(quick, max_body_bytes=1500).handle(sent)
    assert response.status == status, response.body


async def test_ids_are_answered_once() -> None:
    async def quick(_: RunContext) -> str:
        return "a"

    made, sent = endpoint(quick), request("GET", "/runners")
    assert [(await made.handle(sent)).status for _ in range(2)] == [200, 409]


async def test_manifest_follows_from_the_decorator() -> None:
    made = Endpoint(SECRET)
    made.runner(ID, label="Test", description="d", permissions={"tools": ["call"]})(lambda ctx: None)
    [manifest] = json.loads((await made.handle(request("GET", "/runners"))).body)["runners"]
    assert manifest["label"] == {"en_US": "Test"}
    assert manifest["capabilities"]["tool_calling"] is True
    assert manifest["capabilities"]["knowledge_retrieval"] is False
    with pytest.raises(ValueError, match="twice"):
        made.runner("acme/test")
    for wrong in ("acme", "plugin:acme/test", "plugin:a//b", "plugin:a/b/c d"):
        with pytest.raises(ValueError, match="runner id"):
            made.runner(wrong)
    with pytest.raises(ValueError, match="twice"):
        made.runner(ID)


async def test_token_is_renewed_before_it_expires() -> None:
    calls, renewed = list[tuple[str, str]](), asyncio.Event()

    def answer(call: httpx.Request) -> httpx.Response:
        calls.append((call.url.path, call.headers["authorization"]))
        if call.url.path.endswith("/token"):
            renewed.set()
            return httpx.Response(200, json={"token": "t-2", "token_expires_at": int(time.time()) + 900})
        return httpx.Response(200, json={"run_id": "r-1"})

    async def waits(ctx: RunContext) -> str:
        await renewed.wait()
        while ctx.host.token == "t-1":  # noqa: ASYNC110 - the response is being read
            await asyncio.sleep(0)
        await ctx.host.json("GET", "run")
        return "a"

    made = endpoint(waits, transport=httpx.MockTransport(answer))
    body = run_request()
    body["host"]["token_expires_at"] = int(time.time()) + 30
    response = await made.handle(request("POST", "/runs", body))
    assert (await results_of(response))[-1]["type"] == "run.completed"
    assert calls == [("/host/v1/token", "Bearer t-1"), ("/host/v1/run", "Bearer t-2")]


def shown(found: list[tuple[str, typing.Any]]) -> str:
    """The text that a client shows of the deltas."""
    return "".join(data["chunk"]["content"] for kind, data in found if kind == "message.delta")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("Let me look.", "It is 02:52.", "Let me look.\n\nIt is 02:52."),
        ("Let me look.\n", "It is 02:52.", "Let me look.\nIt is 02:52."),
        ("", "It is 02:52.", "It is 02:52."),
    ],
)
async def test_text_after_a_tool_call_is_a_paragraph(before: str, after: str, expected: str) -> None:
    async def look(_: RunContext) -> typing.AsyncIterator[typing.Any]:
        yield before
        for call in ("c-1", "c-2"):
            yield results.tool_started(call, "clock", {})
            yield results.tool_completed(call, "clock", result={})
        yield after[:2]
        yield after[2:]

    found = await outcome(look)
    assert shown(found) == expected
    assert found[-2][1]["message"]["content"] == expected


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("02:52", "02:52"),
        ({"text": "02:52"}, "02:52"),
        ({"value": "02:52"}, "02:52"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        ([{"type": "text", "text": "a"}], "a"),
        ({"text": "02:52", "zone": "UTC"}, '{"text": "02:52", "zone": "UTC"}'),
        ({"content": [{"type": "image"}]}, '{"content": [{"type": "image"}]}'),
        ({"text": 7}, '{"text": 7}'),
        ([], "[]"),
    ],
)
async def test_sole_text_of_a_tool_is_no_json(result: typing.Any, text: str) -> None:
    messages = list[typing.Any]()

    async def ask(ctx: RunContext) -> typing.AsyncIterator[typing.Any]:
        function = {"name": "clock", "arguments": "{}"}
        turn: typing.Any = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
        async for one in ctx.tools.call_all(turn, messages):
            yield one

    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={"result": result}))
    found = await outcome(ask, transport=transport)
    assert messages[-1]["content"] == text
    assert found[1][1]["result"] == {"text": text}


def looping_gateway(turns_with_calls: int) -> httpx.MockTransport:
    """A model that calls the clock in its first turns, and then answers."""
    requests = list[typing.Any]()

    def answer(call: httpx.Request) -> httpx.Response:
        if call.url.path.endswith("/call"):
            return httpx.Response(200, json={"result": {"text": "02:52"}})
        requests.append(json.loads(call.content))
        chunk: dict[str, typing.Any] = {"role": "assistant", "content": f"Turn {len(requests)}."}
        if len(requests) <= turns_with_calls:
            function = {"name": "clock", "arguments": "{}"}
            chunk["tool_calls"] = [{"id": f"c-{len(requests)}", "type": "function", "function": function}]
        assert [tool["name"] for tool in requests[-1]["tools"]] == ["clock"]
        return httpx.Response(200, text=f"data: {json.dumps({'chunk': chunk})}\n\n")

    return httpx.MockTransport(answer)


RESOURCES = {"models": [{"model_id": "m"}], "tools": [{"tool_name": "clock"}]}


async def test_agent_loop_calls_tools_until_the_answer() -> None:
    messages: list[typing.Any] = [{"role": "user", "content": "What time is it?"}]

    async def ask(ctx: RunContext) -> typing.AsyncIterator[typing.Any]:
        async for one in ctx.agent_loop(messages):
            yield one

    made = endpoint(ask, transport=looping_gateway(1))
    found = [(one["type"], one["data"]) for one in await results_of(await started(made, resources=RESOURCES))]
    assert shown(found) == "Turn 1.\n\nTurn 2."
    assert [kind for kind, _ in found if kind != "message.delta"] == [
        "tool.call.started",
        "tool.call.completed",
        "message.completed",
        "run.completed",
    ]
    assert [one["role"] for one in messages] == ["user", "assistant", "tool", "assistant"]


async def test_checkpoint_includes_results_before_it() -> None:
    stored = list[tuple[str, str, typing.Any]]()

    def answer(call: httpx.Request) -> httpx.Response:
        stored.append((call.method, call.url.path, json.loads(call.content)))
        return httpx.Response(200, json={"version": len(stored), "after": 0})

    async def steps(ctx: RunContext) -> typing.AsyncIterator[str]:
        assert ctx.resume is None
        await ctx.checkpoint({"step": 0})
        yield "one"
        yield "two"
        await ctx.checkpoint({"step": 2})

    await results_of(await started(endpoint(steps, transport=httpx.MockTransport(answer))))
    path = "/host/v1/checkpoint"
    assert stored == [
        ("PUT", path, {"value": {"step": 0}}),
        ("PUT", path, {"value": {"step": 2}, "sequence": 2}),
    ]


async def test_attempt_from_checkpoint_sends_no_joined_message() -> None:
    async def rest(ctx: RunContext) -> typing.AsyncIterator[str]:
        assert ctx.resume is not None
        yield f"after {ctx.resume['checkpoint']}"

    runtime = {"resume": {"checkpoint": 7, "after": 3}}
    found = await results_of(await started(endpoint(rest), runtime=runtime))
    assert [(one["type"], one["sequence"]) for one in found] == [("message.delta", 1), ("run.completed", 2)]
    assert shown([(one["type"], one["data"]) for one in found]) == "after 7"


async def test_agent_loop_continues_from_its_checkpoint() -> None:
    checkpoints = list[typing.Any]()
    model = looping_gateway(1)

    async def answer(call: httpx.Request) -> httpx.Response:
        if call.url.path.endswith("/checkpoint"):
            checkpoints.append(json.loads(call.content)["value"])
            return httpx.Response(200, json={"version": 1, "after": 0})
        return await model.handle_async_request(call)

    async def ask(ctx: RunContext) -> typing.AsyncIterator[typing.Any]:
        async for one in ctx.agent_loop("What time is it?", checkpoints=True):
            yield one

    made = endpoint(ask, transport=httpx.MockTransport(answer))
    access = {"available_apis": {"state": True}}
    await results_of(await started(made, resources=RESOURCES, context=access))
    assert [[one["role"] for one in turns] for turns in checkpoints] == [["user", "assistant", "tool"]]

    again = endpoint(ask, transport=looping_gateway(0))
    runtime = {"resume": {"checkpoint": checkpoints[0], "after": 3}}
    found = await results_of(await started(again, resources=RESOURCES, context=access, runtime=runtime))
    assert [one["type"] for one in found] == ["message.delta", "run.completed"]


async def test_agent_loop_is_bounded() -> None:
    async def ask(ctx: RunContext) -> typing.AsyncIterator[typing.Any]:
        async for one in ctx.agent_loop("What time is it?", max_turns=2):
            yield one

    found = await results_of(await started(endpoint(ask, transport=looping_gateway(9)), resources=RESOURCES))
    assert found[-1]["data"]["code"] == "runner.no_answer"
    assert [one["type"] for one in found].count("tool.call.started") == 2


async def test_usage_of_models_is_reported_at_the_end() -> None:
    chunk = {"chunk": {"role": "assistant", "content": "hi"}}
    usage = {"usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}}
    text = "".join(f"data: {json.dumps(one)}\n\n" for one in (chunk, usage))

    async def ask(ctx: RunContext) -> typing.AsyncIterator[str]:
        for _ in range(2):
            async for piece in ctx.models.stream("hi"):
                yield piece

    transport = httpx.MockTransport(lambda _: httpx.Response(200, text=text))
    found = await results_of(await started(endpoint(ask, transport=transport)))
    assert found[-1]["usage"] == {"prompt_tokens": 6, "completion_tokens": 2, "total_tokens": 8}


def test_run_ends_by_codes_of_the_run_only() -> None:
    for status, code, details, expected in [
        (401, "unauthenticated", {}, True),
        (409, "cancelled", {}, True),
        (504, "deadline_exceeded", {}, True),
        (504, "deadline_exceeded", {"reason": "upstream_timeout"}, False),
        (403, "unauthorized", {}, False),
    ]:
        assert ApiError(status, code, "m", False, details).is_run_over is expected, code
    assert not ApiError(504, "deadline_exceeded", "m", retryable=True).is_run_over


async def test_tool_calls_are_joined_with_their_fields() -> None:
    def call(arguments: str) -> dict[str, typing.Any]:
        function = {"name": "add", "arguments": arguments}
        return {"id": "c-1", "type": "function", "function": function}

    def chunk(**members: typing.Any) -> str:
        return f"data: {json.dumps({'chunk': {'role': 'assistant', **members}})}\n\n"

    text = chunk(content="thought", provider_specific_fields={"p": 1})
    text += chunk(content="Let", all_content="Let") + chunk(tool_calls=[call('{"a"')]) + chunk(tool_calls=[call(":1}")])
    found = list[typing.Any]()

    async def ask(ctx: RunContext) -> None:
        answer = ctx.models.stream("hi")
        found.extend([[piece async for piece in answer], answer.message])

    await outcome(ask, transport=httpx.MockTransport(lambda _: httpx.Response(200, text=text)))
    assert found[0] == ["thought", "Let"]
    assert found[1] == {
        "role": "assistant",
        "content": "Let",
        "tool_calls": [call('{"a":1}')],
        "provider_specific_fields": {"p": 1},
    }


def test_oldest_unverified_bodies_are_dropped() -> None:
    bodies = UnverifiedBytes(10)
    first, second, third = bodies.begin(), bodies.begin(), bodies.begin()
    assert (bodies.add(second, b"1234"), bodies.add(first, b"123456")) == (4, 6)
    assert bodies.add(third, b"1") == 1
    with pytest.raises(Rejection, match="unfinished bodies"):
        bodies.add(first, b"1")
    assert bodies.end(second) == b"1234"
    assert bodies.add(third, b"1" * 20) == 21, "a body drops others only"
    assert bodies.end(third) == b"1" * 21
    assert bodies._total == 0


async def test_stalled_bodies_are_bounded_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.runner._unverified.PROCESS", UnverifiedBytes(1000))
    made, statuses = Endpoint(SECRET), list[int]()
    proceed, arrived = asyncio.Event(), asyncio.Event()

    async def post(*, stalls: bool) -> None:
        pieces = [b"x" * 600, b"x"]

        async def receive() -> dict[str, typing.Any]:
            if stalls and len(pieces) == 1:
                arrived.set()
                await proceed.wait()
            piece = pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

        async def send(message: typing.Any) -> None:
            if "status" in message:
                statuses.append(message["status"])

        await made({"type": "http", "method": "POST", "path": "/runs", "headers": []}, receive, send)

    stalled = asyncio.ensure_future(post(stalls=True))
    await arrived.wait()
    await post(stalls=False)
    proceed.set()
    await stalled
    assert statuses == [401, 503]


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
async def test_doubled_headers_are_refused(name: str) -> None:
    signed = [(key.encode(), value.encode()) for key, value in Webhook(SECRET).sign("m_1", b"").items()]
    statuses = list[int]()

    async def receive() -> dict[str, typing.Any]:
        return {"type": "http.request"}

    async def send(message: typing.Any) -> None:
        if "status" in message:
            statuses.append(message["status"])

    doubled = [(name.encode(), b"other"), *signed]
    for headers in (doubled, [*signed, *[one for one in signed if one[0] == name.encode()]], signed):
        await Endpoint(SECRET)({"type": "http", "method": "GET", "path": "/runners", "headers": headers}, receive, send)
    assert statuses == [401, 401, 200]
