"""The package against the real gateway."""

import asyncio
import secrets
import sys
import typing
from pathlib import Path

import pytest

import gateway_process
from gateway_process import SECRET, Gateway, Playground, Process, conform
from proxy import Cutter
from runnel import ApiError, AsyncClient, Client, NoRunError, delta_text, message
from runnel.types import EventEnvelope

pytestmark = pytest.mark.anyio
RUNNERS = ("echo", "agent", "question", "endless")
APP = str(Path(__file__).parent / "runner_app.py")


class Runner(Process):
    """The runners of the tests, served by a framework."""

    def __init__(self, directory: Path, framework: str) -> None:
        super().__init__([sys.executable, APP, framework], directory, {"RUNNER_SECRET": SECRET})
        self.url = self.first_line.split()[1]


@pytest.fixture(scope="module")
def playground(tmp_path_factory: pytest.TempPathFactory) -> typing.Iterator[Playground]:
    gateway_process.binary()
    started = Playground(tmp_path_factory.mktemp("playground"))
    yield started
    started.stop()


@pytest.fixture(scope="module", params=["plain", "own"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> typing.Iterator[Gateway]:
    """A gateway with the runners over ASGI, then over WSGI."""
    gateway_process.binary()
    directory = tmp_path_factory.mktemp(request.param)
    runner = Runner(directory, request.param)
    gateway = Gateway(directory, runner.url, RUNNERS)
    yield gateway
    gateway.stop()
    log = runner.stop()
    assert "Traceback" not in log, log


def fresh() -> str:
    return f"c-{secrets.token_hex(4)}"


def posted(runner: str, text: str, conversation: str | None = None) -> EventEnvelope:
    return {**message(text, conversation or fresh()), "source": runner}


def text_of(events: list[typing.Any]) -> str:
    return "".join(map(delta_text, events))


def test_client_asks_and_reads_the_history(playground: Playground) -> None:
    conversation = fresh()
    with Client(playground.url, playground.key) as client:
        answer = client.ask("hello big world", conversation)
        assert answer.startswith("You said: hello big world")
        items = [(item["role"], item["content"]) for item in client.history(conversation, forward=True)]
        assert items == [("user", "hello big world"), ("assistant", answer)]
        listed = {one["conversation_id"]: one["message_count"] for one in client.conversations()}
        assert listed[conversation] == 2


async def test_broken_streams_lose_nothing(playground: Playground) -> None:
    with Cutter(playground.url, 1500) as cutter:
        async with AsyncClient(cutter.url, playground.key) as client:
            stream = client.stream(message("hello big world", fresh()))
            events = [event async for event in stream]
    assert cutter.cuts > 1
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    async with AsyncClient(playground.url, playground.key) as client:
        run = await client.run(stream.run_id or "")
        assert run["status"] == "completed"
        assert [event async for event in client.follow(run["run_id"])] == events


async def test_unwanted_events_start_no_run(playground: Playground) -> None:
    async with AsyncClient(playground.url, playground.key) as client:
        with pytest.raises(NoRunError, match="no_agent"):
            await anext(client.stream({"event_type": "tick.hourly"}))
        accepted = await client.post_event({"event_type": "tick.hourly"})
        assert (accepted.get("run_id"), accepted.get("reason")) == (None, "no_agent")
        assert "tick.hourly" in (accepted.get("hint") or "")


async def test_files_travel_with_events(served: Gateway) -> None:
    async with AsyncClient(served.url, served.key) as client:
        upload = await client.upload(b"12345", "five.txt", "text/plain")
        assert await client.download(upload["artifact_id"]) == b"12345"
        event = {**message("hi", fresh(), files=(upload["artifact_id"],)), "source": "agent"}
        events = [one async for one in client.stream(event)]  # type: ignore[arg-type]
        [created] = [one for one in events if one["type"] == "artifact.created"]
        assert await client.download(created["data"].get("artifact_id", "")) == b"a,b\n"
        [log] = [one["data"]["text"] for one in events if one["type"] == "processor.log"]
        assert log == "history 1, passages 0, version 1, files [5]"


async def test_agent_uses_model_tools_and_history(served: Gateway) -> None:
    conversation = fresh()
    async with AsyncClient(served.url, served.key) as client:
        first = [one async for one in client.stream(posted("agent", "what time is it?", conversation))]
        kinds = [one["type"] for one in first]
        assert kinds[:2] == ["tool.call.started", "tool.call.completed"]
        assert kinds[-2:] == ["message.completed", "run.completed"]
        assert text_of(first).startswith("Clock: ")
        second = [one async for one in client.stream(posted("agent", "and now?", conversation))]
        assert text_of(second) == "Echo: and now?"
        [log] = [one["data"]["text"] for one in second if one["type"] == "processor.log"]
        assert log.startswith("history 3, passages 0, version 2")
        run = await client.run(second[0]["run_id"])
        assert (run["usage"] or {})["total_tokens"] > 0
        assert run["metadata"] == {"rejected": 0, "duplicates": 0, "gaps": 0}


async def test_answers_reach_the_waiting_run(served: Gateway) -> None:
    async with AsyncClient(served.url, served.key) as client:
        delivery = {"surface": "test", "interactions": {"field_types": ["text"], "action_styles": ["default"]}}
        event: EventEnvelope = {**posted("question", "hi"), "delivery": delivery}
        events = []
        async for one in client.stream(event):
            events.append(one)
            if one["type"] == "action.requested":
                [pending] = [item async for item in client.interactions(run_id=one["run_id"])]
                assert pending == await client.interaction(pending["id"])
                answered = await client.answer(pending, "book", {"desk": "b"})
                assert answered.get("status") == "submitted", answered
        assert text_of(events) == "submitted book {'desk': 'b'}"


async def test_cancelled_run_ends_as_cancelled(served: Gateway) -> None:
    async with AsyncClient(served.url, served.key) as client:
        events = []
        async for one in client.stream(posted("endless", "hi")):
            events.append(one)
            if one["type"] == "message.delta":
                await client.cancel(one["run_id"])
        assert events[-1]["type"] == "run.failed"
        assert events[-1]["data"]["code"] == "cancelled"
        assert (await client.run(events[0]["run_id"]))["status"] == "cancelled"


async def test_ended_runs_are_listed_and_retried(served: Gateway) -> None:
    conversation = fresh()
    async with AsyncClient(served.url, served.key) as client:
        async for one in client.stream(posted("endless", "hi", conversation)):
            if one["type"] == "message.delta":
                await client.cancel(one["run_id"])
        [cancelled] = [run async for run in client.runs(statuses=["cancelled"], conversation_id=conversation)]
        again = await client.retry(cancelled["run_id"])
        assert again.get("retry_of") == cancelled["run_id"]
        assert (await client.retry(cancelled["run_id"]))["run_id"] == again["run_id"]
        with pytest.raises(ApiError, match="conflict") as raised:
            await client.retry(again["run_id"])
        assert (raised.value.status, raised.value.details["reason"]) == (409, "run_live")
        await client.cancel(again["run_id"])
        listed = [run["run_id"] async for run in client.runs(conversation_id=conversation)]
        assert listed == [again["run_id"], cancelled["run_id"]]
        assert [run async for run in client.runs(conversation_id=conversation, bot_id="b")] == []


async def test_concurrent_runs_do_not_mix(served: Gateway) -> None:
    async with AsyncClient(served.url, served.key) as client:

        async def say(text: str) -> str:
            return text_of([one async for one in client.stream(posted("echo", text))])

        texts = [f"run number {number}" for number in range(20)]
        assert await asyncio.gather(*map(say, texts)) == [f"{text} " for text in texts]


@pytest.mark.parametrize("framework", ["plain", "starlette", "fastapi", "flask", "own"])
def test_adapter_passes_conform(framework: str, tmp_path: Path) -> None:
    gateway_process.binary()
    runner = Runner(tmp_path, framework)
    try:
        report = conform(runner.url, "plugin:acme/test/echo")
        verdicts = {check["id"]: check["outcome"] for check in report["checks"]}
        for name in ("signature.runs_an_id_once", "cancel.says_cancelled", "callbacks.token", "deadline.respected"):
            assert verdicts[name] == "pass", name
        assert not {"fail", "warn"} & set(verdicts.values()), verdicts
    finally:
        runner.stop()
