"""The bridge as a process, and the gateway's side of its requests."""

import base64
import contextlib
import http.client
import itertools
import json
import os
import subprocess
import sys
import time
import typing
import urllib.parse
from pathlib import Path

from langbot_bridge.signatures import Keys

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
TOKEN = "tools-for-tests"
PLUGINS = Path(__file__).parent / "plugins"
HELLO = Path(__file__).parent.parent / "plugins" / "hello"
RUNNER = "plugin:tester/probe/default"
_SECONDS = 30

_ids = itertools.count(1)


class Stream:
    """The results of a run while they come."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._connection, self._response = connection, response
        self.status = response.status
        self.comments: list[str] = []

    def body(self) -> typing.Any:
        return json.loads(self._response.read() or b"null")

    def __iter__(self) -> typing.Iterator[dict[str, typing.Any]]:
        for line in self._response:
            if line.startswith(b"data:"):
                yield json.loads(line[5:])
            elif line.startswith(b":"):
                self.comments.append(line.decode().strip())

    def all(self) -> list[dict[str, typing.Any]]:
        found = list(self)
        assert [result["sequence"] for result in found] == list(range(1, len(found) + 1))
        assert [result["type"] for result in found].count("run.completed") <= 1
        assert found[-1]["type"] in ("run.completed", "run.failed"), found
        return found

    def close(self) -> None:
        self._response.close()
        self._connection.close()


class Bridge:
    """A running `langbot-bridge`."""

    def __init__(self, arguments: list[str], environment: dict[str, str] | None = None) -> None:
        environment = {
            **os.environ,
            "LANGBOT_BRIDGE_SECRET": SECRET,
            "LANGBOT_BRIDGE_MCP_TOKEN": TOKEN,
            **(environment or {}),
        }
        command = [sys.executable, "-m", "langbot_bridge.cli", "--port", "0", *arguments]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        self.ids: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "listening on " in line:
                self.url = line.rpartition(" ")[2].strip()
                break
            self.ids.append(line.strip())
        else:
            raise AssertionError(f"the bridge ended with {self.process.wait()}")

    def stop(self) -> int:
        self.process.terminate()
        status = self.process.wait(_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def request(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Stream:
        """A request with these headers, or signed where there are none."""
        address = urllib.parse.urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_SECONDS)
        connection.request(method, path, body, headers if headers is not None else signed(body))
        return Stream(connection, connection.getresponse())

    def run(self, text: str, gateway: typing.Any, runner: str = RUNNER, **parts: typing.Any) -> Stream:
        """Starts a run whose input is this text."""
        message = run_request(text, gateway, runner, **parts)
        return self.request("POST", "/runs", json.dumps(message).encode())

    def resume(self, run_id: str, gateway: typing.Any, attempt: int, after: int | None = None) -> Stream:
        """Attaches to a run, as the gateway that owns it now."""
        host = {"base_url": gateway.url, "token": f"token-{attempt}", "token_expires_at": int(time.time()) + 600}
        message = {"run_id": run_id, "runner_id": RUNNER, "attempt": attempt, "after": after, "host": host}
        return self.request("POST", f"/runs/{run_id}/resume", json.dumps(message).encode())

    def cancel(self, run_id: str) -> Stream:
        body = json.dumps({"run_id": run_id}).encode()
        return self.request("POST", f"/runs/{run_id}/cancel", body)

    def call_tool(self, method: str, params: dict[str, typing.Any] | None = None) -> dict[str, typing.Any]:
        """One request by MCP."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}).encode()
        return self.request("POST", "/mcp", body, {"authorization": f"Bearer {TOKEN}"}).body()


def signed(body: bytes, when: int | None = None) -> dict[str, str]:
    return Keys(SECRET).sign(f"msg_{os.getpid()}_{next(_ids)}", int(time.time()) if when is None else when, body)


def run_request(text: str, gateway: typing.Any, runner: str = RUNNER, **parts: typing.Any) -> dict[str, typing.Any]:
    """The body of `POST /runs`. `parts` replace members of the context."""
    run_id = parts.pop("run_id", f"run-{os.getpid()}-{next(_ids)}")
    context = {
        "run_id": run_id,
        "trigger": {"type": "message.received", "source": "api"},
        "event": {"event_id": "e-1", "event_type": "message.received", "source": "api", "data": {}},
        "conversation": {"conversation_id": "c-1", "bot_id": "bot-1"},
        "actor": {"actor_type": "user", "actor_id": "u-1", "actor_name": "Ada"},
        "input": {"text": text, "contents": [{"type": "text", "text": text}], "attachments": []},
        "delivery": {"surface": "api", "supports_streaming": True},
        "resources": gateway.resources(),
        "context": {"available_apis": gateway.apis()},
        "state": {"conversation": {}, "actor": {}, "subject": {}, "runner": {}},
        "runtime": {"deadline_at": time.time() + 60, "metadata": {"limits": {"line_bytes": 262_144}}},
        "config": {},
        **parts,
    }
    host = {"base_url": gateway.url, "token": "run-token", "token_expires_at": int(time.time()) + 600}
    return {"runner_id": runner, "runner_name": runner.rpartition("/")[2], "context": context, "host": host}


def types(found: list[dict[str, typing.Any]]) -> list[str]:
    return [result["type"] for result in found]


def last_content(found: list[dict[str, typing.Any]]) -> typing.Any:
    """The content of the last message."""
    messages = [result["data"]["message"] for result in found if result["type"] == "message.completed"]
    assert messages, found
    return messages[-1]["content"]


def streamed(found: list[dict[str, typing.Any]]) -> str:
    """The text of the deltas, as the gateway joins them."""
    text = ""
    for result in found:
        if result["type"] == "message.delta":
            chunk = result["data"]["chunk"]
            text = chunk["all_content"] if "all_content" in chunk else text + (chunk.get("content") or "")
    return text


@contextlib.contextmanager
def bridge(*arguments: str, **environment: str) -> typing.Iterator[Bridge]:
    started = Bridge(list(arguments), environment)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.stop()
