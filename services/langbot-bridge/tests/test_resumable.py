"""Runs that outlive their connection: docs/protocol.md, Resumable runners."""

import asyncio
import contextlib
import dataclasses
import http.client
import itertools
import json
import time
import typing

import aiohttp
import pytest
from langbot_plugin.entities.io.errors import ConnectionClosedError

from bridge_process import RUNNER, Bridge, Stream, last_content, run_request, signed
from fake_gateway import FakeGateway
from langbot_bridge import errors, results
from langbot_bridge.gateway_client import _Repeats
from langbot_bridge.limits import Limits
from langbot_bridge.run import Run
from langbot_bridge.stream import ResultStream

MOVED = 401, {"code": "run_moved", "message": "wait for the resume", "retryable": False, "details": {}}


def read(stream: Stream, number: int | None = None) -> list[bytes]:
    """Bytes of the next results, or of all."""
    assert stream.status == 200, stream.body()
    lines = (line for line in stream._response if line.startswith(b"data:"))
    return list(itertools.islice(lines, number))


def until(condition: typing.Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_resume_repeats_equal_bytes_after_each_cut(probe: Bridge, gateway: FakeGateway) -> None:
    for cut in range(6):
        run_id = f"r-cut-{cut}"
        first = probe.run("echo one two three", gateway, run_id=run_id)
        found = read(first, cut)
        first.close()
        attempts = itertools.count(2)
        for stored in range(cut + 1):
            again = read(probe.resume(run_id, gateway, next(attempts), stored))
            assert len(again) == 5 - stored
            assert found[stored:] == again[: cut - stored]
            found = found[:stored] + again[: cut - stored]


def test_runner_works_on_without_a_gateway(probe: Bridge, gateway: FakeGateway) -> None:
    stream = probe.run("steer", gateway, run_id="r-on")
    assert len(read(stream, 1)) == 1
    stream.close()
    event = {"event_id": "e-2", "event_type": "message.received", "source": "api"}
    gateway.steered.append({"claimed_run_id": "r", "runner_id": RUNNER, "event": event, "input": {"text": "more"}})
    until(lambda: not gateway.steered)
    assert last_content([json.loads(line[5:]) for line in read(probe.resume("r-on", gateway, 2, 1))]) == "more"


def test_refuses_lower_attempts_and_unknown_runs(probe: Bridge, gateway: FakeGateway) -> None:
    body = json.dumps(run_request("wait", gateway, run_id="r-attempt")).encode()
    stream = probe.request("POST", "/runs", body, {**signed(body), "runnel-attempt": "3"})
    read(stream, 1)
    assert [probe.resume("r-attempt", gateway, attempt).status for attempt in (2, 3)] == [409, 409]
    assert probe.resume("r-nowhere", gateway, 2).status == 404
    message = {"action": "resume", "run_id": "r-attempt", "runner_id": RUNNER, "attempt": "4", "host": {}}
    assert probe.request("POST", "/", json.dumps(message).encode()).status == 400
    assert probe.resume("r-attempt", gateway, 4, 9).status == 404, "no such result"
    until(lambda: probe.cancel("r-attempt").status == 404)


def test_resume_closes_the_connection_before_it(probe: Bridge, gateway: FakeGateway) -> None:
    first = probe.run("wait", gateway, run_id="r-over")
    read(first, 1)
    second = probe.resume("r-over", gateway, 2, 1)
    with contextlib.suppress(OSError, http.client.HTTPException):
        assert read(first) == []
    probe.cancel("r-over")
    assert b'"cancelled"' in read(second)[-1]


def test_cancel_ends_a_run_without_a_gateway(probe: Bridge, gateway: FakeGateway) -> None:
    stream = probe.run("wait", gateway, run_id="r-alone")
    read(stream, 1)
    stream.close()
    assert probe.cancel("r-alone").status == 202
    [last] = read(probe.resume("r-alone", gateway, 2, 1))
    assert b'"cancelled"' in last
    assert probe.cancel("r-alone").status == 404


def test_calls_wait_for_the_token_of_the_resume(probe: Bridge, gateway: FakeGateway) -> None:
    gateway.refuses["/prompt"] = MOVED
    stream = probe.run("calls get_prompt", gateway, run_id="r-moved")
    until(lambda: "GET /prompt" in gateway.paths())
    stream.close()
    following = FakeGateway()
    found = [json.loads(line[5:]) for line in read(probe.resume("r-moved", following, 2))]
    following.close()
    assert "ok" in json.loads(last_content(found))["get_prompt"]
    assert following.requests[0][2]["authorization"] == "Bearer token-2"


def test_tool_calls_have_an_idempotency_key(probe: Bridge, gateway: FakeGateway) -> None:
    probe.run("tool get_current_time", gateway).all()
    [key] = [headers["idempotency-key"] for _, path, headers, _ in gateway.requests if path.endswith("/call")]
    assert len(key) == 32


# --- without a process ---


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Clock:
    """Clock of the running event loop, moved by hand."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._time, self._ahead = loop.time, 0.0
        loop.time = lambda: self._time() + self._ahead  # type: ignore[method-assign]

    async def move(self, seconds: float) -> None:
        await settle()
        self._ahead += seconds
        await settle()


@pytest.mark.parametrize(("left", "seconds"), [(None, 120), (600.0, 120), (20.0, 20), (-1.0, 0)])
def test_run_without_resume_is_lost(left: float | None, seconds: int) -> None:
    async def lose() -> None:
        clock, lost = Clock(), asyncio.Event()
        stream = ResultStream(left and time.time() + left, lost.set)
        stream.detach(stream.attach(1, 0))
        connection = stream.attach(2, 0)
        await clock.move(500)
        assert not lost.is_set(), "a connection is attached"
        stream.detach(connection)
        if seconds:
            await clock.move(seconds - 1)
            assert not lost.is_set()
        await clock.move(2)
        assert lost.is_set()

    asyncio.run(lose())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of three results and 1,000 bytes."""
    limits = dataclasses.replace(Limits(), buffered_results=3, buffered_bytes=1000)
    monkeypatch.setattr("langbot_bridge.stream.LIMITS", limits)


@pytest.mark.usefixtures("small")
def test_sent_results_are_dropped_first() -> None:
    async def fill() -> None:
        stream = ResultStream(None, lambda: None)
        connection = stream.attach(1, 0)
        frames = stream.frames(connection)
        await anext(frames)
        for number in range(1, 6):
            stream.add(b"%d" % number)
            assert await anext(frames) == b"%d" % number
        # The fifth is not sent before the connection takes the next step.
        assert [stream.has_after(number) for number in (2, 3, 5, 6)] == [False, True, True, False]
        stream.add(b"x" * 1000)
        assert await anext(frames) == b"x" * 1000
        assert [stream.has_after(number) for number in (4, 5)] == [False, True]

    asyncio.run(fill())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("text", "taken"), [("x", 3), ("x" * 1000, 1)])
def test_full_buffer_fails_a_run_without_a_gateway(text: str, taken: int) -> None:
    async def fill() -> None:
        host = {"base_url": "http://host/host/v1", "token": "t", "token_expires_at": 1}
        run = Run({"run_id": "r", "runtime": {}}, host, {}, lambda: None)
        run.stream.detach(run.stream.attach(1, 0))
        for _ in range(5):
            await run.put(results.note("r", text))
        assert run.stream.last == taken
        await run.put(run.end or results.completed("r"))
        assert run.stream.last == taken + 1
        assert b'"runner.buffer_full"' in run.stream._frames[taken + 1]

    asyncio.run(fill())


def refused(code: str) -> Exception:
    return errors.action_error("x", code, code)


def broken(cause: Exception) -> Exception:
    error = ConnectionClosedError("broken")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "is_harmless", "expected"),
    [
        (refused("run_moved"), False, True),
        (refused("unauthenticated"), True, False),
        (broken(aiohttp.ClientConnectorError(typing.cast(typing.Any, None), OSError())), False, True),
        (broken(aiohttp.ServerDisconnectedError()), True, True),
        (broken(aiohttp.ServerDisconnectedError()), False, False),
    ],
    ids=["moved", "over", "unsent", "read", "write"],
)
def test_calls_without_effect_are_repeated(error: Exception, is_harmless: bool, expected: bool) -> None:
    async def repeat() -> bool:
        host = {"base_url": "http://host/host/v1", "token": "t", "token_expires_at": 1}
        run = Run({"run_id": "r", "runtime": {}}, host, {}, lambda: None)
        repeats = _Repeats(run, is_harmless=is_harmless)
        due = asyncio.ensure_future(repeats.is_due(error))
        await settle()
        assert due.done() is not expected, "it waits for the resume"
        run.move(host, {})
        return await due

    assert asyncio.run(repeat()) is expected


def test_waiting_calls_are_bounded() -> None:
    async def wait() -> None:
        clock = Clock()
        host = {"base_url": "http://host/host/v1", "token": "t", "token_expires_at": 1}
        run = Run({"run_id": "r", "runtime": {}}, host, {}, lambda: None)
        due = asyncio.ensure_future(_Repeats(run, is_harmless=True).is_due(refused("run_moved")))
        await clock.move(119)
        assert not due.done()
        await clock.move(2)
        assert await due is False

    asyncio.run(wait())
