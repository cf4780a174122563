"""The client against scripted responses. tests/test_gateway.py has the real gateway."""

import asyncio
import inspect
import json
import threading
import tracemalloc
import typing
import zlib
from collections.abc import Callable

import httpx
import pytest

from runnel import (
    ApiError,
    AsyncClient,
    Client,
    ClientClosedError,
    GatewayUnreachableError,
    NoRunError,
    RunEvent,
    RunFailedError,
    RunnelError,
    StreamLostError,
    delta_text,
    message,
)
from runnel.runner.context import HostAccess
from runnel.runner.host import HostApi

pytestmark = pytest.mark.anyio
RUN = "01a20468-f8ea-76a6-9b32-32089ce69a5c"
Answer = httpx.Response | Exception


class Script(httpx.AsyncBaseTransport):
    """Answers requests in order and keeps them. The last answer repeats."""

    def __init__(self, *answers: Answer | Callable[[], Answer]) -> None:
        self._answers, self.requests = list(answers), list[httpx.Request]()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        answer = answer if isinstance(answer, Answer) else answer()
        if isinstance(answer, Exception):
            raise answer
        return answer


class Cut(httpx.AsyncByteStream):
    """A body that breaks after its text."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def __aiter__(self) -> typing.AsyncIterator[bytes]:
        yield self._text.encode()
        raise httpx.ReadError("cut")


def frame(sequence: int, kind: str = "message.delta", data: typing.Any = None) -> str:
    chunk = {"chunk": {"role": "assistant", "content": str(sequence)}}
    event = {"run_id": RUN, "sequence": sequence, "type": kind, "data": chunk if data is None else data}
    return f"id: {sequence}\nevent: {kind}\ndata: {json.dumps(event)}\n\n"


def stream(*frames: str, cut: bool = False) -> Callable[[], httpx.Response]:
    headers = {"content-type": "text/event-stream", "runnel-run-id": RUN}
    text = f": run {RUN}\n\n" + "".join(frames)
    return lambda: httpx.Response(200, headers=headers, **({"stream": Cut(text)} if cut else {"text": text}))


def refusal(status: int, code: str, **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"code": code, "message": "m"}}, headers=headers)


END = frame(3, "run.completed", {"finish_reason": "stop"})


def client(script: Script, patience: float = 5.0) -> AsyncClient:
    return AsyncClient("http://gateway", "rnl_key", patience=patience, transport=script)


async def sequences(events: typing.AsyncIterator[typing.Any]) -> list[int]:
    return [event["sequence"] async for event in events]


async def test_stream_resumes_after_the_last_event() -> None:
    script = Script(stream(frame(1), "data: {", cut=True), stream(frame(1), frame(2), cut=True), stream(END))
    assert await sequences(client(script).stream(message("hi"))) == [1, 2, 3]
    post, first, second = script.requests
    assert (post.method, post.url.path) == ("POST", "/v1/events")
    assert first.url.path == f"/v1/runs/{RUN}/events"
    assert [one.headers.get("last-event-id") for one in script.requests] == [None, "1", "2"]
    assert second.headers["authorization"] == "Bearer rnl_key"


async def test_post_is_repeated_with_its_key() -> None:
    script = Script(httpx.ConnectError("no"), stream(cut=True), refusal(503, "unavailable"), stream(END))
    assert await sequences(client(script).stream(message("hi"))) == [3]
    assert [one.method for one in script.requests] == ["POST"] * 4
    assert len({one.headers["idempotency-key"] for one in script.requests}) == 1
    assert "last-event-id" not in script.requests[-1].headers


async def test_event_id_replaces_the_random_key() -> None:
    script = Script(stream(END))
    await sequences(client(script).stream({**message("hi"), "event_id": "m-1"}))
    assert "idempotency-key" not in script.requests[0].headers


async def test_notices_without_id_are_no_events() -> None:
    draining = 'event: gateway.draining\ndata: {"sequence": 9, "type": "gateway.draining"}\n\n'
    script = Script(stream(frame(1), draining), stream(frame(2), END))
    assert await sequences(client(script).stream(message("hi"))) == [1, 2, 3]


async def test_separators_inside_of_a_text_are_preserved() -> None:
    text = "a\u2028b\u0085c\r"
    script = Script(stream(frame(1, data={"chunk": {"role": "assistant", "content": text}}), END))
    events = [event async for event in client(script).stream(message("hi"))]
    assert events[0]["data"] == {"chunk": {"role": "assistant", "content": text}}


async def test_retries_end_with_the_patience() -> None:
    script = Script(stream(frame(1), cut=True), httpx.ConnectError("refused"))
    with pytest.raises(StreamLostError, match="refused") as raised:
        await sequences(client(script, patience=0.05).stream(message("hi")))
    assert (raised.value.run_id, raised.value.after) == (RUN, 1)
    with pytest.raises(GatewayUnreachableError, match="http://gateway"):
        await client(Script(httpx.ConnectError("refused")), patience=0.05).post_event(message("hi"))
    with pytest.raises(ApiError, match="unavailable"):
        await client(Script(refusal(503, "unavailable")), patience=0.05).run(RUN)


async def test_waits_as_long_as_the_gateway_asks() -> None:
    script = Script(refusal(429, "rate_limited", **{"retry-after": "60"}), stream(END))
    with pytest.raises(ApiError, match="rate_limited"):
        await client(script, patience=5).post_event(message("hi"))
    assert len(script.requests) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 409, 410])
async def test_faults_of_the_caller_are_not_retried(status: int) -> None:
    script = Script(refusal(status, "c"))
    with pytest.raises(ApiError) as raised:
        await sequences(client(script).follow(RUN))
    assert (raised.value.status, raised.value.code, len(script.requests)) == (status, "c", 1)


async def test_rejected_key_is_named() -> None:
    reason = "rejected; check api_key or RUNNEL_API_KEY"
    with pytest.raises(ApiError, match=reason):
        await client(Script(refusal(401, "unauthenticated"))).run(RUN)
    with pytest.raises(ApiError, match=reason):
        await sequences(client(Script(refusal(401, "unauthenticated"))).stream(message("hi")))
    with pytest.raises(ApiError, match=reason):
        await client(Script(refusal(401, "unauthenticated"))).download("a")


async def test_event_without_agent_raises() -> None:
    script = Script(httpx.Response(202, json={"event_id": "m-1", "reason": "no_agent", "hint": "say received"}))
    with pytest.raises(NoRunError, match="no_agent; say received") as raised:
        await sequences(client(script).stream(message("hi")))
    assert (raised.value.reason, raised.value.hint) == ("no_agent", "say received")


async def test_follow_of_an_ended_run_is_empty() -> None:
    assert await sequences(client(Script(httpx.Response(204))).follow(RUN, after=3)) == []


async def test_ask_raises_the_failure_of_the_run() -> None:
    failed = frame(2, "run.failed", {"code": "timeout", "message": "too late"})
    with pytest.raises(RunFailedError, match="timeout: too late"):
        await client(Script(stream(frame(1), failed))).ask("hi")


async def test_pages_are_followed_to_the_end() -> None:
    first = httpx.Response(200, json={"items": [{"id": 1}], "has_more": True, "next_cursor": "c"})
    script = Script(first, httpx.Response(200, json={"items": [{"id": 2}], "has_more": False}))
    assert [one["id"] async for one in client(script).interactions(conversation_id="c-1")] == [1, 2]
    assert script.requests[1].url.params["after"] == "c"
    assert script.requests[1].url.params["status"] == "open"


async def test_claimed_action_is_finished_with_its_token() -> None:
    claimed = {"action": {"id": "a-1"}, "claim_token": "secret"}
    script = Script(*[httpx.Response(200, json=claimed)] * 3)
    program = client(script)
    claim = await program.claim_action("a-1", lease_seconds=5)
    await program.finish_action(claim, {"message_id": "m"})
    await program.finish_action(claim, error={"code": "unsupported", "message": "no such action"})
    assert [one.url.path for one in script.requests] == ["/v1/actions/a-1/claim"] + ["/v1/actions/a-1/result"] * 2
    assert [json.loads(one.content) for one in script.requests] == [
        {"lease_seconds": 5},
        {"claim_token": "secret", "status": "done", "output": {"message_id": "m"}},
        {
            "claim_token": "secret",
            "status": "failed",
            "error": {"code": "unsupported", "message": "no such action"},
        },
    ]


async def test_runs_are_filtered_and_paged() -> None:
    # A page that scanned its most runs has no items, and still a next page.
    first = httpx.Response(200, json={"items": [], "has_more": True, "next_cursor": "c"})
    script = Script(first, httpx.Response(200, json={"items": [{"run_id": RUN}], "has_more": False}))
    found = client(script).runs(statuses=("failed", "timeout"), conversation_id="c-1", bot_id="")
    assert [one["run_id"] async for one in found] == [RUN]
    sent = [dict(one.url.params) for one in script.requests]
    query = {"statuses": "failed,timeout", "conversation_id": "c-1", "bot_id": "", "limit": "100"}
    assert sent == [query, {**query, "cursor": "c"}]


async def test_single_status_needs_no_list() -> None:
    script = Script(httpx.Response(200, json={"items": [], "has_more": False}))
    assert [one async for one in client(script).runs(statuses="failed")] == []
    assert script.requests[0].url.params["statuses"] == "failed"


async def test_lost_response_of_a_retry_is_repeated() -> None:
    script = Script(httpx.ReadError("cut"), httpx.Response(200, json={"run_id": "r-2", "retry_of": RUN}))
    assert (await client(script).retry(RUN)).get("retry_of") == RUN
    assert [(one.method, one.url.path) for one in script.requests] == [("POST", f"/v1/runs/{RUN}/retry")] * 2


async def test_retry_names_its_result() -> None:
    script = Script(httpx.Response(202, json={"run_id": "r-2", "retry_of": RUN, "retry_from": 3}))
    assert (await client(script).retry(RUN, after=3)).get("retry_from") == 3
    assert json.loads(script.requests[0].content) == {"from": 3}


@pytest.mark.parametrize("data", [{}, {"chunk": None}, {"chunk": {"role": "assistant", "tool_calls": []}}])
def test_deltas_without_text_are_empty(data: typing.Any) -> None:
    event: RunEvent = {
        "run_id": RUN,
        "sequence": 1,
        "type": "message.delta",
        "data": data,
        "created_at": 0,
        "source": "runner",
    }
    assert delta_text(event) == ""


async def test_ids_stay_one_segment_of_the_path() -> None:
    script = Script(httpx.Response(200, json={"items": [], "has_more": False}))
    assert [one async for one in client(script).history("a/../b")] == []
    assert script.requests[0].url.raw_path.startswith(b"/v1/conversations/a%2F..%2Fb/history")
    with pytest.raises(ValueError, match="no id"):
        await client(script).run("..")
    with pytest.raises(ValueError, match="no id"):
        client(script).follow("..")
    ended = httpx.Response(204)
    script = Script(ended)
    assert [event async for event in client(script).follow("../conversations?x")] == []
    assert script.requests[0].url.raw_path == b"/v1/runs/..%2Fconversations%3Fx/events"
    accepted = httpx.Response(202, json={"event_id": "e", "run_id": ".."})
    with pytest.raises(ValueError, match="no id"):
        [event async for event in client(Script(accepted)).stream(message("hi"))]


async def test_downloads_are_bounded() -> None:
    script = Script(httpx.Response(200, content=b"12345"))
    assert await client(script).download("a") == b"12345"
    with pytest.raises(Exception, match="larger than 4 bytes"):
        await client(Script(httpx.Response(200, content=b"12345"))).download("a", max_bytes=4)


class Body(httpx.AsyncByteStream):
    """A body of pieces that arrive from the network."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> typing.AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def gzip(content: bytes) -> bytes:
    compress = zlib.compressobj(9, wbits=16 + zlib.MAX_WBITS)
    return compress.compress(content) + compress.flush()


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_download_limit_counts_decoded_bytes(encoding: str) -> None:
    packed = (gzip if encoding == "gzip" else zlib.compress)(b"x" * 100_000_000)
    answer = httpx.Response(200, headers={"content-encoding": encoding}, stream=Body(packed))
    tracemalloc.start()
    try:
        with pytest.raises(RunnelError, match="larger than 1000 bytes"):
            await client(Script(answer)).download("a", max_bytes=1000)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


async def test_downloads_are_decoded() -> None:
    text = b"n,total\n" * 100_000
    packed = gzip(text)
    headers = {"content-encoding": "gzip"}
    pieces = [packed[at : at + 7] for at in range(0, len(packed), 7)]
    script = Script(httpx.Response(200, headers=headers, stream=Body(*pieces)))
    assert await client(script).download("a") == text
    assert script.requests[0].headers["accept-encoding"] == "identity"
    for answer, reason in [
        (httpx.Response(200, headers=headers, stream=Body(packed[:-9])), "is cut"),
        (httpx.Response(200, headers=headers, stream=Body(b"text")), "no gzip"),
        (httpx.Response(200, headers={"content-encoding": "gzip, gzip"}, stream=Body(packed)), "'gzip, gzip'"),
    ]:
        with pytest.raises(RunnelError, match=reason):
            await client(Script(answer)).download("a")


@pytest.mark.parametrize("line", [b"data: " + b"x" * 1000 + b"\n", b"id: 1\n", b"x" * 4096])
async def test_events_are_bounded(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.sse.MAX_EVENT_BYTES", 10_000)
    headers = {"content-type": "text/event-stream"}
    answer = httpx.Response(200, headers=headers, stream=Body(*[line] * 2000))
    with pytest.raises(RunnelError, match="more than 10000 bytes"):
        await sequences(client(Script(answer)).follow(RUN))


def test_sync_client_iterates_and_closes() -> None:
    script = Script(stream(frame(1), frame(2), END))
    with Client("http://gateway", "rnl_key", transport=script) as sync:
        with sync.stream(message("hi")) as events:
            assert next(events)["sequence"] == 1
            assert (events.run_id, events.after) == (RUN, 1)
        assert [event["sequence"] for event in sync.stream(message("hi"))] == [1, 2, 3]


class Silent(httpx.AsyncBaseTransport):
    """Answers nothing."""

    def __init__(self) -> None:
        self.received = threading.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.received.set()
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize(
    "call",
    [
        lambda client: next(client.stream(message("hi"))),
        lambda client: next(client.runs()),
        lambda client: client.download("a"),
    ],
)
def test_closing_ends_calls_of_other_threads(call: Callable[[Client], object]) -> None:
    silent, raised = Silent(), list[BaseException]()
    sync = Client("http://gateway", "rnl_key", transport=silent)

    def read() -> None:
        try:
            call(sync)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    assert silent.received.wait(10)
    sync.close()
    thread.join(10)
    assert [type(one) for one in raised] == [ClientClosedError]
    with pytest.raises(ClientClosedError, match="was closed"):
        sync.run(RUN)


async def test_closing_ends_calls_of_other_tasks() -> None:
    silent = Silent()
    asynchronous = AsyncClient("http://gateway", "rnl_key", transport=silent)
    reading = asyncio.ensure_future(sequences(asynchronous.follow(RUN)))
    assert await asyncio.to_thread(silent.received.wait, 10)
    await asynchronous.aclose()
    with pytest.raises(ClientClosedError, match="was closed"):
        await asyncio.wait_for(reading, 10)


def test_sync_client_has_the_async_methods() -> None:
    def methods(one: type) -> dict[str, list[str]]:
        found = {name: member for name, member in vars(one).items() if name[0] != "_" and callable(member)}
        return {name: list(inspect.signature(member).parameters) for name, member in found.items()}

    asynchronous = {
        name.removeprefix("a") if name == "aclose" else name: of for name, of in methods(AsyncClient).items()
    }
    assert methods(Client) == asynchronous


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "https://[::1]:1", "http://localhost:1", "http://direct:1"])
async def test_loopback_gateways_need_no_proxy(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:7890")
    monkeypatch.setenv("NO_PROXY", "direct")
    direct = AsyncClient(url, "rnl_key", patience=0)
    with pytest.raises(GatewayUnreachableError):
        await direct.run(RUN)


@pytest.mark.parametrize(
    ("variable", "proxy"),
    [
        ("ALL_PROXY", "socks5://user:secret@127.0.0.1:7890"),
        ("HTTPS_PROXY", "ftp://user:secret@proxy"),
        ("HTTP_PROXY", "http://user:secret@proxy:port"),
    ],
)
async def test_unusable_proxies_are_named(variable: str, proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, proxy)
    access: HostAccess = {"base_url": "https://gateway.example/host/v1", "token": "t", "token_expires_at": 2**40}
    with pytest.raises(RunnelError, match=f"in {variable} cannot be used.*gateway.example to NO_PROXY") as raised:
        AsyncClient("https://gateway.example", "rnl_key")
    assert "secret" not in str(raised.value)
    with pytest.raises(RunnelError, match=f"in {variable} cannot be used"):
        await HostApi(access, None).json("GET", "run")


def test_client_without_key_says_which_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNNEL_API_KEY", raising=False)
    with pytest.raises(ValueError, match="RUNNEL_API_KEY"):
        AsyncClient()
