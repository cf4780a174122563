"""The real gateway with the bridge as its runner endpoint. `RUNNEL_BIN` names its binary."""

import http.client
import json
import os
import secrets
import socket
import subprocess
import typing
import urllib.parse
from pathlib import Path

import pytest

from bridge_process import SECRET, TOKEN

_SECONDS = 60
_CONFIG = """
[server]
listen = "{address}"
[auth]
master_key = "env:TEST_MASTER_KEY"
[database]
url = "sqlite://{directory}/runnel.db"
[artifacts]
url = "file://{directory}/artifacts"
[egress]
allow = ["127.0.0.0/8"]

[[runner_endpoints]]
name = "bridge"
base_url = "{bridge}"
secret = "env:TEST_BRIDGE_SECRET"

[[mcp_servers]]
name = "plugins"
url = "{bridge}/mcp"
headers = {{ authorization = "env:TEST_MCP" }}

[[model_providers]]
name = "script"
kind = "scripted"
[[models]]
model_id = "small"
provider = "script"
[[models]]
model_id = "ranker"
provider = "script"
model_type = "rerank"
operations = ["rerank"]
[[models]]
model_id = "embedder"
provider = "script"
operations = ["invoke"]
[[tools]]
tool_name = "get_current_time"
[[knowledge_bases]]
kb_id = "notes"
kb_name = "Notes"
{agents}
"""
_AGENT = """
[[agents]]
name = "{name}"
event_types = ["*"]
scope = {{ kind = "global" }}
filters = {{ source = ["{name}"] }}
runner_id = "plugin:tester/probe/{runner}"
concurrency = "{concurrency}"
config = {{ timeout = {timeout}{key} }}
resource_policy = {{ models = "*", tools = "*", knowledge_bases = "*", storage = ["plugin", "workspace"], \
history = ["page", "search"], events = ["get", "page"], artifacts = ["metadata", "read", "create"] }}
state_policy = {{ enabled = true, scopes = ["conversation", "actor", "subject", "runner"] }}
delivery_policy = {{ interactions = true }}
"""
# Name, runner, concurrency, seconds of a run.
_AGENTS = [
    ("probe", "default", "concurrent", 50),
    ("steered", "default", "steer", 50),
    ("brief", "default", "concurrent", 1),
    ("handlers", "handlers", "concurrent", 50),
    ("ears", "default-events", "concurrent", 50),
]


def binary() -> str:
    """The gateway's binary. Skips where there is none, fails where it is required."""
    named = os.environ.get("RUNNEL_BIN")
    if named:
        return named
    reason = "RUNNEL_BIN names no gateway: nothing was tested against a real one"
    if "langbot" in os.environ.get("RUNNEL_TEST_REQUIRE", ""):
        pytest.fail(reason)
    pytest.skip(reason)


class Gateway:
    """A gateway on SQLite, with an API key of role client."""

    def __init__(self, directory: Path, bridge: str) -> None:
        self._directory, self._binary = directory, binary()
        self._environment = {
            **os.environ,
            "TEST_MASTER_KEY": secrets.token_hex(32),
            "TEST_BRIDGE_SECRET": SECRET,
            "TEST_MCP": f"Bearer {TOKEN}",
        }
        names = ("name", "runner", "concurrency", "timeout")
        agents = ""
        for agent in _AGENTS:
            key = ', key = "env:BRIDGE_KEY"' if agent[1] == "default" else ""
            agents += _AGENT.format(key=key, **dict(zip(names, agent, strict=True)))
        config = _CONFIG.format(address=free_address(), directory=directory, bridge=bridge, agents=agents)
        (directory / "runnel.toml").write_text(config)
        self.key = json.loads(self.command("token", "create", "--role", "client", "--name", "test", "--json"))["key"]
        with open(directory / "gateway.log", "w") as log:
            self._process = subprocess.Popen(
                [self._binary, "serve", "--config", "runnel.toml"],
                cwd=directory,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("listening "):
                self.url = line.split()[1]
                return
        raise AssertionError((directory / "gateway.log").read_text())

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def command(self, *arguments: str) -> str:
        """Output of a command with the gateway's configuration."""
        line = [self._binary, *arguments]
        if arguments[0] != "conform":
            line += ["--config", "runnel.toml"]
        ended = subprocess.run(
            line,
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def call(self, method: str, path: str, body: typing.Any = None, **headers: str) -> http.client.HTTPResponse:
        address = urllib.parse.urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_SECONDS)
        sent = {"authorization": f"Bearer {self.key}", "content-type": "application/json", **headers}
        connection.request(method, path, None if body is None else json.dumps(body), sent)
        return connection.getresponse()

    def get(self, path: str) -> typing.Any:
        return json.loads(self.call("GET", path).read())

    def post(self, agent: str, text: str, **parts: typing.Any) -> "Events":
        """Posts a message for an agent and gives the events of its run."""
        event = {
            "event_type": "message.received",
            "source": agent,
            "conversation": {"conversation_id": f"c-{secrets.token_hex(4)}"},
            "actor": {"actor_type": "user", "actor_id": "u-1", "actor_name": "Ada"},
            "input": {"text": text},
            **parts,
        }
        return Events(self.call("POST", "/v1/events", event, accept="text/event-stream"))


class Events:
    """The events of a run while they come."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        assert response.status == 200, response.read()
        self._response = response
        self.run_id = response.headers["runnel-run-id"]

    def __iter__(self) -> typing.Iterator[dict[str, typing.Any]]:
        for line in self._response:
            if line.startswith(b"data:"):
                yield json.loads(line[5:])

    def all(self) -> list[dict[str, typing.Any]]:
        found = list(self)
        assert found[-1]["type"] in ("run.completed", "run.failed"), found
        return found


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host, port = probe.getsockname()
        return f"{host}:{port}"
