"""The real gateway. `RUNNEL_BIN` names its binary."""

import json
import os
import secrets
import socket
import subprocess
import typing
from pathlib import Path

import pytest

SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
_SECONDS = 60
_CONFIG = """
[server]
listen = "127.0.0.1:{port}"
[auth]
master_key = "env:TEST_MASTER_KEY"
[database]
url = "sqlite://{directory}/runnel.db"
[artifacts]
url = "file://{directory}/artifacts"
[egress]
allow = ["127.0.0.0/8"]

[[runner_endpoints]]
name = "package"
base_url = "{runner}"
secret = "env:TEST_RUNNER_SECRET"

[[model_providers]]
name = "script"
kind = "scripted"
script = "{directory}/script.toml"
[[models]]
model_id = "small"
provider = "script"
[[tools]]
tool_name = "get_current_time"
[[knowledge_bases]]
kb_id = "notes"
"""
_AGENT = """
[[agents]]
name = "{name}"
event_types = ["*"]
scope = {{ kind = "global" }}
filters = {{ source = ["{name}"] }}
runner_id = "plugin:acme/test/{name}"
resource_policy = {{ models = "*", tools = "*", knowledge_bases = "*", history = ["page"], \
artifacts = ["metadata", "read", "create"] }}
state_policy = {{ enabled = true, scopes = ["conversation"] }}
delivery_policy = {{ interactions = true }}
"""
_SCRIPT = """
[[turns]]
after_tool = true
answer = "Clock: {tool}"
[[turns]]
when = "what time"
offered = "get_current_time"
tool_calls = [{ name = "get_current_time" }]
[[turns]]
answer = "Echo: {input}"
"""


def binary() -> str:
    """The gateway's binary. Skips where there is none, fails where it is required."""
    named = os.environ.get("RUNNEL_BIN")
    if named:
        return named
    reason = "RUNNEL_BIN names no gateway: nothing was tested against a real one"
    if "clients" in os.environ.get("RUNNEL_TEST_REQUIRE", ""):
        pytest.fail(reason)
    pytest.skip(reason)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def conform(url: str, runner_id: str) -> dict[str, typing.Any]:
    """The report of `runnel conform`, without failures."""
    options = ["--runner", runner_id, "--secret", "env:TEST_RUNNER_SECRET", "--json"]
    line = [binary(), "conform", url, *options]
    environment = {**os.environ, "TEST_RUNNER_SECRET": SECRET}
    ended = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


class Process:
    """A program that prints its address as the first line of output."""

    def __init__(self, command: list[str], directory: Path, environment: dict[str, str]) -> None:
        self._log = directory / f"{Path(command[0]).name}-{secrets.token_hex(3)}.log"
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(
                command, cwd=directory, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        self.first_line = self._process.stdout.readline()
        assert self.first_line, self._log.read_text()

    def stop(self) -> str:
        """Stops it and returns its log."""
        self._process.terminate()
        self._process.wait(_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return self._log.read_text()


class Playground(Process):
    """`runnel dev` with its scripted model."""

    def __init__(self, directory: Path) -> None:
        options = ["--data-dir", str(directory / "data"), "--listen", "127.0.0.1:0", "--script", "--json"]
        super().__init__([binary(), "dev", *options], directory, {})
        startup = json.loads(self.first_line)
        self.url, self.key = startup["url"], startup["api_key"]


class Gateway(Process):
    """`runnel serve` with an agent for each runner of the endpoint at `runner`."""

    def __init__(self, directory: Path, runner: str, names: tuple[str, ...]) -> None:
        environment = {"TEST_MASTER_KEY": secrets.token_hex(32), "TEST_RUNNER_SECRET": SECRET}
        config = _CONFIG.format(port=free_port(), directory=directory, runner=runner)
        (directory / "runnel.toml").write_text(config + "".join(_AGENT.format(name=name) for name in names))
        (directory / "script.toml").write_text(_SCRIPT)
        self.key = self._key(directory, environment)
        super().__init__([binary(), "serve", "--config", "runnel.toml"], directory, environment)
        self.url = self.first_line.split()[1]

    @staticmethod
    def _key(directory: Path, environment: dict[str, str]) -> str:
        line = [binary(), "token", "create", "--config", "runnel.toml", "--role", "client", "--name", "t", "--json"]
        ended = subprocess.run(
            line, cwd=directory, env={**os.environ, **environment}, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return str(json.loads(ended.stdout)["key"])
