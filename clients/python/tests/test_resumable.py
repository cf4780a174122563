"""Resumable runs without a network: docs/protocol.md, Resumable runners."""

import asyncio
import contextlib
import sys
import time
import typing
from pathlib import Path

import httpx
import pytest

from gateway_process import Process
from runnel import ApiError
from runnel.runner import Endpoint, RunContext, results
from runnel.runner._runs import Runs
from runnel.runner._stream import ResultStream
from runnel.runner.endpoint import Request, Response
from test_adapter import ID, SECRET, request, run_request

pytestmark = pytest.mark.anyio


def endpoint(function: typing.Any, *, resume_within_seconds: int | None = None, **options: typing.Any) -> Endpoint:
    made = Endpoint(SECRET, **options)
    made.runner(ID, capabilities={"resumable": True}, resume_within_seconds=resume_within_seconds)(function)
    return made


def resume_request(attempt: int, after: int | None = None, run_id: str = "r-1", **host: typing.Any) -> Request:
    access = {"base_url": "http://next/host/v1", "token": f"t-{attempt}", "token_expires_at": int(time.time()) + 900}
    body = {"run_id": run_id, "runner_id": ID, "attempt": attempt, "after": after, "host": {**access, **host}}
    return request("POST", f"/runs/{run_id}/resume", body)


async def start(made: Endpoint, **context: typing.Any) -> Response:
    response = await made.handle(request("POST", "/runs", run_request(**context)))
    assert response.status == 200, response.body
    return response


async def resume(made: Endpoint, attempt: int, after: int | None = None) -> Response:
    response = await made.handle(resume_request(attempt, after))
    assert response.status == 200, response.body
    return response


async def read(response: Response, number: int | None = None) -> list[bytes]:
    """The next results of a connection, or all of them."""
    found = list[bytes]()
    assert response.frames is not None
    while number is None or len(found) < number:
        frame = await anext(response.frames, None)
        if frame is None:
            break
        if not frame.startswith(b":"):
            found.append(frame)
    return found


async def lose(response: Response) -> None:
    assert response.frames is not None
    await response.frames.aclose()


async def settle() -> None:
    """Runs the tasks that are ready."""
    for _ in range(20):
        await asyncio.sleep(0)


class Clock:
    """Clock of the event loop, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self._time, self._ahead = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: self._time() + self._ahead)

    async def move(self, seconds: float) -> None:
        await settle()
        self._ahead += seconds
        await settle()


async def three_words(_: RunContext) -> typing.AsyncIterator[str]:
    for word in ("one ", "two ", "three"):
        yield word


async def test_manifest_declares_the_capability() -> None:
    [manifest] = (await listed(endpoint(three_words, resume_within_seconds=30)))["runners"]
    assert (manifest["capabilities"]["resumable"], manifest["resume_within_seconds"]) == (True, 30)


async def listed(made: Endpoint) -> typing.Any:
    return httpx.Response(200, content=(await made.handle(request("GET", "/runners"))).body).json()


async def test_resume_repeats_equal_bytes_after_each_cut() -> None:
    expected = await read(await start(endpoint(three_words)))
    assert len(expected) == 5
    for cut in range(6):
        for stored in range(cut + 1):
            made = endpoint(three_words)
            response = await start(made)
            found = await read(response, cut)
            await lose(response)
            assert found[:stored] + await read(await resume(made, 2, stored)) == expected


async def test_run_works_on_without_its_connection() -> None:
    cut, done = asyncio.Event(), asyncio.Event()

    async def works(_: RunContext) -> typing.AsyncIterator[str]:
        yield "a"
        await cut.wait()
        for _ in range(100):
            yield "b"
        done.set()

    made = endpoint(works)
    response = await start(made)
    await read(response, 1)
    await lose(response)
    cut.set()
    await done.wait()
    assert len(await read(await resume(made, 2, 1))) == 102


async def test_ended_run_frees_its_slot_and_can_be_resumed() -> None:
    made = endpoint(three_words, max_runs=1)
    expected = await read(await start(made))
    await read(await start(made, run_id="r-2"))
    assert await read(await resume(made, 2, 4)) == expected[4:]


async def test_refuses_attempts_that_are_not_higher() -> None:
    made = endpoint(three_words)
    body = request("POST", "/runs", run_request())
    body.headers["runnel-attempt"] = "3"
    await read(await made.handle(body), 1)
    statuses = [(await made.handle(resume_request(attempt, 1))).status for attempt in (2, 3, 4, 4)]
    assert statuses == [409, 409, 200, 409]


async def test_answers_404_for_runs_that_it_lacks() -> None:
    made = endpoint(three_words)
    assert (await made.handle(resume_request(2))).status == 404
    plain = Endpoint(SECRET)
    plain.runner(ID)(three_words)
    response = await start(plain)
    assert (await plain.handle(resume_request(2))).status == 404
    await lose(response)
    other = request("POST", "/", {"action": "resume", "run_id": "r-1", "runner_id": ID, "attempt": "2", "host": {}})
    assert (await made.handle(other)).status == 400


async def test_single_url_resumes_by_action() -> None:
    made = endpoint(three_words)
    await lose(await start(made))
    body = {"action": "resume", "run_id": "r-1", "runner_id": ID, "attempt": 2, "host": run_request()["host"]}
    assert len(await read(await made.handle(request("POST", "/", body)))) == 5


async def test_higher_attempt_closes_the_connection_before_it() -> None:
    made = endpoint(three_words)
    first = await start(made)
    await read(first, 2)
    second = await resume(made, 2, 2)
    assert first.frames is not None
    assert first.frames.replaced.is_set()
    assert await read(first) == []
    # The loss of the old connection does not detach the new one.
    await lose(first)
    assert len(await read(second)) == 3


async def test_asgi_closes_connections_that_take_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.runner.asgi._CLOSE_SECONDS", 0.001)
    made, blocked = endpoint(three_words), asyncio.Event()
    sent = request("POST", "/runs", run_request())
    messages = [{"type": "http.request", "body": sent.body}]

    async def receive() -> typing.Any:
        return messages.pop() if messages else await asyncio.Event().wait()

    async def send(message: typing.Any) -> None:
        if message.get("body", b"").startswith(b"event"):
            blocked.set()
            await asyncio.Event().wait()

    headers = [(name.encode(), value.encode()) for name, value in sent.headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/runs", "headers": headers}
    serving = asyncio.ensure_future(made(scope, receive, send))
    await blocked.wait()
    response = await resume(made, 2)
    await serving
    assert len(await read(response)) == 5


async def flood(_: RunContext) -> typing.AsyncIterator[results.Result]:
    for _ in range(10_050):
        yield results.log("x")


async def test_full_buffer_fails_a_detached_run() -> None:
    made = endpoint(flood)
    await lose(await start(made))
    await settle()
    found = await read(await resume(made, 2))
    assert len(found) == 10_001
    assert b'"code": "runner.buffer_full"' in found[-1]
    assert b'"retryable": true' in found[-1]


async def test_bytes_bound_the_buffer_of_a_detached_run() -> None:
    async def large(_: RunContext) -> typing.AsyncIterator[results.Result]:
        for _ in range(200):
            yield results.message("x" * 60_000)

    made = endpoint(large)
    await lose(await start(made))
    await settle()
    found = await read(await resume(made, 2))
    assert len(found) == 8 * 1024 * 1024 // 60_000 + 2
    assert b'"code": "runner.buffer_full"' in found[-1]


async def test_attached_run_drops_its_oldest_sent_results() -> None:
    made = endpoint(flood)
    response = await start(made)
    await read(response, 10_040)
    await lose(response)
    assert (await made.handle(resume_request(2, 5))).status == 404
    await settle()
    assert (await made.handle(resume_request(3, 10_000))).status == 404, "its gateway has ended the run"
    made = endpoint(flood)
    response = await start(made)
    await read(response, 10_040)
    await lose(response)
    assert len(await read(await resume(made, 2, 10_000))) == 51


async def test_ended_runs_are_bounded() -> None:
    runs = Runs()
    streams = [ResultStream(15, 120) for _ in range(1030)]
    for number, stream in enumerate(streams):
        runs.end(f"r-{number}", stream)
    assert [runs.stream_of(f"r-{number}") is not None for number in (5, 6)] == [False, True]
    streams[1029].add(b"x" * 33 * 1024 * 1024)
    runs.end("r-1030", ResultStream(15, 120))
    assert runs.stream_of("r-1028") is None
    assert runs.stream_of("r-1030") is not None


@pytest.mark.parametrize("framework", ["own", "plain"])
def test_servers_detach_and_resume(framework: str, tmp_path: Path) -> None:
    script = str(Path(__file__).parent / "runner_app.py")
    served = Process([sys.executable, script, framework], tmp_path, {"RUNNER_SECRET": SECRET})
    try:
        url = served.first_line.split()[1]
        body = {**run_request(), "runner_id": "plugin:acme/test/counter"}
        sent = request("POST", "/runs", body)
        with httpx.stream("POST", f"{url}/runs", content=sent.body, headers=sent.headers) as response:
            first = [line for line, _ in zip(response.iter_lines(), range(8), strict=False) if line.startswith("id: ")]
        again = resume_request(2, 1)
        resumed = httpx.post(f"{url}/runs/r-1/resume", content=again.body, headers=again.headers).text
        ids = [line for line in resumed.split("\n") if line.startswith("id: ")]
        assert (first[0], ids) == ("id: 1", [f"id: {number}" for number in range(2, 13)])
    finally:
        served.stop()


@contextlib.asynccontextmanager
async def endless_run(made_with: typing.Any = None, **context: typing.Any) -> typing.AsyncIterator[typing.Any]:
    """A detached run, and the event of its end."""
    ended = asyncio.Event()

    async def endless(_: RunContext) -> typing.AsyncIterator[str]:
        try:
            yield "a"
            await asyncio.Event().wait()
        finally:
            ended.set()

    made = endpoint(endless, resume_within_seconds=made_with)
    response = await start(made, **context)
    await read(response, 1)
    await lose(response)
    yield made, ended


@pytest.mark.parametrize(("within", "deadline", "seconds"), [(None, 600, 120), (30, 600, 30), (None, 20, 20)], ids=str)
async def test_run_without_resume_is_cancelled(
    within: int | None, deadline: int, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    async with endless_run(within, runtime={"deadline_at": time.time() + deadline}) as (made, ended):
        await clock.move(seconds - 3)
        assert not ended.is_set()
        await clock.move(6)
        assert ended.is_set()
        assert (await made.handle(resume_request(2, 1))).status == 404


async def test_resume_stops_the_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    async with endless_run() as (made, ended):
        response = await resume(made, 2, 1)
        await clock.move(500)
        assert not ended.is_set()
        await lose(response)
        await clock.move(121)
        assert ended.is_set()


async def test_cancel_ends_a_detached_run() -> None:
    async with endless_run() as (made, ended):
        assert (await made.handle(request("POST", "/runs/r-1/cancel", {"run_id": "r-1"}))).status == 202
        await ended.wait()
        [last] = await read(await resume(made, 2, 1))
        assert b'"code": "cancelled"' in last


# --- host API ---


class Gateways:
    """Hosts `host` and `next`, of which the first is lost, with the calls that reached them."""

    def __init__(self, failure: typing.Any) -> None:
        self.calls, self.failed = list[tuple[str, str, str | None]](), asyncio.Event()
        self._failures = failure if isinstance(failure, list) else [failure]

    def answer(self, call: httpx.Request) -> httpx.Response:
        key = call.headers.get("idempotency-key")
        self.calls.append((call.url.host, call.headers["authorization"], key))
        if call.url.host == "next":
            if call.url.path.endswith("/stream"):
                return httpx.Response(200, text='data: {"chunk": {"role": "assistant", "content": "hi"}}\n\n')
            return httpx.Response(200, json={"result": "done"})
        self.failed.set()
        failure = self._failures.pop(0) if len(self._failures) > 1 else self._failures[0]
        if isinstance(failure, httpx.Response):
            return failure
        raise failure


def moved() -> httpx.Response:
    error = {"code": "run_moved", "message": "wait for the resume", "retryable": False, "details": {}}
    return httpx.Response(401, json={"error": error})


async def outcome_after_resume(call: typing.Any, failure: typing.Any) -> tuple[Gateways, typing.Any]:
    """The result of a host call that fails at the first gateway. The second one resumes the run."""
    gateways, outcome = Gateways(failure), list[typing.Any]()

    async def calls(ctx: RunContext) -> None:
        try:
            outcome.append(await call(ctx))
        except ApiError as error:
            outcome.append(error.code)

    made = endpoint(calls, transport=httpx.MockTransport(gateways.answer))
    await lose(await start(made))
    await gateways.failed.wait()
    await read(await resume(made, 2))
    return gateways, outcome[0]


async def ask(ctx: RunContext) -> str:
    return "".join([piece async for piece in ctx.models.stream("hi")])


@pytest.mark.parametrize("failure", [moved(), httpx.ConnectError("refused"), httpx.ConnectTimeout("late")], ids=str)
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda ctx: ctx.host.json("POST", "anything"), {"result": "done"}),
        (lambda ctx: ctx.host.json("GET", "run"), {"result": "done"}),
        (ask, "hi"),
    ],
    ids=["write", "read", "stream"],
)
async def test_calls_without_effect_wait_for_the_resume(
    call: typing.Any, expected: typing.Any, failure: typing.Any
) -> None:
    gateways, found = await outcome_after_resume(call, failure)
    assert found == expected
    assert [one[:2] for one in gateways.calls] == [("host", "Bearer t-1"), ("next", "Bearer t-2")]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda ctx: ctx.host.json("POST", "anything"), "callback.unreachable"),
        (lambda ctx: ctx.host.json("GET", "run"), {"result": "done"}),
        (lambda ctx: ctx.host.json("POST", "x", headers={"Idempotency-Key": "k"}), {"result": "done"}),
        (lambda ctx: ctx.host.json("PUT", "checkpoint", json={"value": 1}), {"result": "done"}),
        (lambda ctx: ctx.host.json("PUT", "x", headers={"If-Match": "1"}), "callback.unreachable"),
        (lambda ctx: ctx.tools.call("clock", {}), "done"),
        (ask, "callback.unreachable"),
    ],
    ids=["write", "read", "keyed", "put", "conditional put", "tool", "stream"],
)
async def test_broken_calls_are_repeated_if_harmless(call: typing.Any, expected: typing.Any) -> None:
    gateways, found = await outcome_after_resume(call, httpx.ReadError("broken"))
    assert found == expected
    assert len({key for _, _, key in gateways.calls}) == 1, "both attempts have the same key"


async def test_agent_loop_calls_a_lost_model_again() -> None:
    async def loop(ctx: RunContext) -> str:
        return "".join([str(piece) async for piece in ctx.agent_loop("hi")])

    gateways, found = await outcome_after_resume(loop, [httpx.ReadError("broken"), httpx.ConnectError("refused")])
    assert found == "hi"
    assert [one[0] for one in gateways.calls] == ["host", "host", "next"]


async def test_waiting_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, gateways = Clock(monkeypatch), Gateways(moved())

    async def calls(ctx: RunContext) -> str:
        return str(await ctx.host.json("GET", "run"))

    made = endpoint(calls, transport=httpx.MockTransport(gateways.answer))
    reading = asyncio.ensure_future(read(await start(made, runtime={"deadline_at": time.time() + 600})))
    await gateways.failed.wait()
    await clock.move(119)
    assert not reading.done()
    await clock.move(2)
    assert b'"code": "run_moved"' in (await reading)[-1]


async def test_unreachable_gateway_is_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, gateways = Clock(monkeypatch), Gateways(httpx.ConnectError("refused"))

    async def calls(ctx: RunContext) -> str:
        return str(await ctx.host.json("GET", "run"))

    made = endpoint(calls, transport=httpx.MockTransport(gateways.answer))
    await start(made)
    await gateways.failed.wait()
    assert len(gateways.calls) == 1
    await clock.move(1.1)
    assert len(gateways.calls) == 2


async def test_other_runners_get_errors_at_once() -> None:
    gateways = Gateways(moved())

    async def calls(ctx: RunContext) -> str:
        return str(await ctx.host.json("GET", "run"))

    plain = Endpoint(SECRET, transport=httpx.MockTransport(gateways.answer))
    plain.runner(ID)(calls)
    assert b'"code": "run_moved"' in (await read(await start(plain)))[-1]


async def test_token_of_the_resume_replaces_a_renewed_one() -> None:
    renewing, release, tokens = asyncio.Event(), asyncio.Event(), list[str]()

    async def answer(call: httpx.Request) -> httpx.Response:
        if call.url.path.endswith("/token"):
            renewing.set()
            await release.wait()
            return httpx.Response(200, json={"token": "t-late", "token_expires_at": int(time.time()) + 900})
        return httpx.Response(200, json={})

    async def waits(ctx: RunContext) -> None:
        await release.wait()
        await settle()
        tokens.append(ctx.host.token)

    made = endpoint(waits, transport=httpx.MockTransport(answer))
    body = run_request()
    body["host"]["token_expires_at"] = int(time.time()) + 30
    await lose(await made.handle(request("POST", "/runs", body)))
    await renewing.wait()
    response = await resume(made, 2)
    release.set()
    await read(response)
    assert tokens == ["t-2"]
