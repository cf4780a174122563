"""End to end: the plugin, run by the SDK, against the real gateway with its own agent."""

import itertools
import json
import os
import secrets
import socket
import subprocess
import threading
import typing
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from langbot import context, execute, execute_until, failure, messages, texts

_ANSWER = "You said: hello big world\nI only play a part."


def binary() -> str:
    """The gateway's binary. Skips where there is none, fails where it is required."""
    named = os.environ.get("RUNNEL_BIN")
    if named:
        return named
    reason = "RUNNEL_BIN names no gateway: nothing was tested against a real one"
    if "langbot" in os.environ.get("RUNNEL_TEST_REQUIRE", ""):
        pytest.fail(reason)
    pytest.skip(reason)


class Playground:
    """`runnel dev` with its scripted model: an agent that answers every message of any source."""

    def __init__(self, directory: Path) -> None:
        command = [binary(), "dev", "--data-dir", str(directory / "data"), "--listen", "127.0.0.1:0"]
        with open(directory / "log", "w") as log:
            self._process = subprocess.Popen(
                [*command, "--script", "--json"], stdout=subprocess.PIPE, stderr=log, text=True, cwd=directory
            )
        assert self._process.stdout is not None
        report = json.loads(self._process.stdout.readline())
        self.url, self.key = report["url"], report["api_key"]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def get(self, path: str) -> typing.Any:
        request = urllib.request.Request(self.url + path, headers={"authorization": f"Bearer {self.key}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


class Cutter:
    """A proxy that breaks each stream after `max_bytes` bytes. Other calls pass unchanged."""

    def __init__(self, url: str, max_bytes: int) -> None:
        address = urllib.parse.urlsplit(url)
        self._far, self._max_bytes = (address.hostname or "", address.port or 0), max_bytes
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        with near, socket.create_connection(self._far) as far:
            threading.Thread(target=_pump, args=(near, far), daemon=True).start()
            passed, is_stream = 0, False
            while data := _received(far):
                is_stream = is_stream or b"text/event-stream" in data
                if is_stream and passed + len(data) > self._max_bytes:
                    near.sendall(data[: self._max_bytes - passed])
                    self.cuts += 1
                    break
                passed += len(data)
                near.sendall(data)
            near.shutdown(socket.SHUT_RDWR)


def _pump(source: socket.socket, target: socket.socket) -> None:
    while data := _received(source):
        target.sendall(data)


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(4096)
    except OSError:
        return b""


@pytest.fixture(scope="module")
def playground(tmp_path_factory: pytest.TempPathFactory) -> typing.Iterator[Playground]:
    binary()
    started = Playground(tmp_path_factory.mktemp("playground"))
    yield started
    started.stop()


def config(playground: Playground, url: str | None = None) -> dict[str, typing.Any]:
    return {"url": url or playground.url, "api-key": playground.key, "source": "langbot", "patience": 20}


def fresh() -> dict[str, str]:
    return {"event_id": f"m-{secrets.token_hex(4)}", "conversation_id": f"c-{secrets.token_hex(4)}"}


def test_message_is_answered_as_a_stream(playground: Playground) -> None:
    names = fresh()
    found = execute(context("hello big world", config(playground), **names))
    [answer] = messages(found)
    assert answer.startswith(_ANSWER)
    snapshots = texts(found)
    assert len(snapshots) > 1
    assert all(answer.startswith(text) for text in snapshots)
    history = playground.get(f"/v1/conversations/{names['conversation_id']}/history?bot_id=bot-1")["items"]
    assert [item["role"] for item in history] == ["assistant", "user"]


def test_broken_streams_lose_nothing(playground: Playground) -> None:
    cutter = Cutter(playground.url, 1500)
    found = execute(context("hello big world", config(playground, cutter.url), **fresh()))
    cutter.close()
    assert cutter.cuts > 1
    [answer] = messages(found)
    assert answer.startswith(_ANSWER)
    snapshots = texts(found)
    # No piece arrived twice or out of order: each text extends the one before it.
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(snapshots))
    assert snapshots[-1] == answer


def test_repeated_messages_are_one_run(playground: Playground) -> None:
    names = fresh()
    for _ in range(2):
        execute(context("hello big world", config(playground), **names))
    runs = playground.get(f"/v1/runs?conversation_id={names['conversation_id']}")["items"]
    assert len(runs) == 1


def test_stopped_run_is_cancelled(playground: Playground) -> None:
    names = fresh()
    execute_until(context("hello big world", config(playground), **names), "message.delta")
    [run] = playground.get(f"/v1/runs?conversation_id={names['conversation_id']}")["items"]
    assert run["cancel_requested_at"] is not None


def test_pictures_arrive(playground: Playground) -> None:
    given = {
        "text": "hello big world",
        "contents": [
            {"type": "text", "text": "hello big world"},
            {"type": "image_base64", "image_base64": "data:image/png;base64,iVBORw0KGgo" + "A" * 1_999_997},
        ],
    }
    names = fresh()
    found = execute(context("", config(playground), input=given, **names))
    assert found[-1].type == "run.completed"
    [item] = playground.get(
        f"/v1/conversations/{names['conversation_id']}/history?bot_id=bot-1&include_attachments=true&limit=1&direction=forward"
    )["items"]
    assert item["attachment_refs"]


def test_unwanted_events_and_wrong_keys_fail(playground: Playground) -> None:
    event = {"event_id": "t-1", "event_type": "tick.hourly", "source": "x"}
    assert failure(execute(context("", config(playground), event=event))) == "runnel.no_agent"
    wrong = {**config(playground), "api-key": "rnl_wrong"}
    assert failure(execute(context("hi", wrong, **fresh()))) == "runnel.unauthenticated"
