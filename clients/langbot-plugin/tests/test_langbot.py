"""LangBot from its package: its database is migrated by the commands of docs/langbot.md, the plugin is uploaded, and
messages go over LangBot's WebSocket.

`RUNNEL_TEST_LANGBOT` names a Python with LangBot (`.ci/long` installs it). Local Agent and connectors are in the
directory of the gateway's binary.
"""

import base64
import contextlib
import http.server
import json
import os
import re
import secrets
import signal
import socket
import sqlite3
import subprocess
import threading
import time
import typing
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from langbot import PLUGIN
from test_gateway import binary

_PAGE = PLUGIN.parent.parent / "docs" / "langbot.md"
_SECONDS = 180
_RUNNER = "plugin:runnel/RunnelAgent/default"
_LOCAL_AGENT = "plugin:langbot-team/LocalAgent/default"
_DIFY = "plugin:langbot-team/DifyAgent/default"
_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Upstream:
    """A model provider and a Dify, which repeat what they get."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], typing.Any]] = []
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _upstream(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _upstream(upstream: Upstream) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            is_json = self.headers.get("content-type", "").startswith("application/json")
            body = json.loads(raw) if is_json else raw
            upstream.requests.append((self.path, dict(self.headers.items()), body))
            if self.path.endswith("/files/upload"):
                return self._send(b'{"id": "f-1", "name": "a.png"}', "application/json")
            if self.path.endswith("/chat-messages"):
                events = [
                    {
                        "event": "message",
                        "answer": f"Dify: {body['query']}",
                        "conversation_id": "d-1",
                        "message_id": "m",
                    },
                    {"event": "message_end", "conversation_id": "d-1", "message_id": "m", "metadata": {}},
                ]
            else:
                delta = {"role": "assistant", "content": f"Model: {_text(body['messages'][-1])}"}
                choice = {"index": 0, "delta": delta, "finish_reason": "stop"}
                events = [
                    {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
                ]
            lines = [f"data: {json.dumps(event)}\n\n" for event in events]
            done = [] if self.path.endswith("/chat-messages") else ["data: [DONE]\n\n"]
            return self._send("".join(lines + done).encode(), "text/event-stream")

        def do_GET(self) -> None:
            self._send(b'{"object": "list", "data": [{"id": "m", "object": "model"}]}', "application/json")

        def _send(self, content: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *_arguments: object) -> None:
            pass

    return Handler


def _text(message: dict[str, typing.Any]) -> str:
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    pictures = sum(part["type"] == "image_url" for part in parts)
    text = " ".join(part["text"] for part in parts if part["type"] == "text")
    return f"{text} ({pictures} pictures)" if pictures else text


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def wait_for(condition: typing.Callable[[], typing.Any], what: str) -> typing.Any:
    deadline = time.monotonic() + _SECONDS
    while True:
        with contextlib.suppress(OSError, urllib.error.URLError, KeyError, TypeError):
            if found := condition():
                return found
        assert time.monotonic() < deadline, f"no {what} within {_SECONDS} s"
        time.sleep(0.2)


class Walk:
    """The page, from LangBot's start to its messages."""

    def __init__(self, directory: Path, upstream: Upstream) -> None:
        self.directory, self.upstream = directory, upstream
        self._running: list[subprocess.Popen[bytes]] = []
        self._api, self._control = free_port(), free_port()
        self.token = ""
        self.workspace = ""

    # LangBot

    def start_langbot(self) -> None:
        python = os.environ["RUNNEL_TEST_LANGBOT"]
        token = secrets.token_urlsafe(48)
        environment = {
            **os.environ,
            "LANGBOT_PLUGIN_RUNTIME_CONTROL_TOKEN": token,
            "API__HOST": "127.0.0.1",
            "API__PORT": str(self._api),
            "PLUGIN__RUNTIME_WS_URL": f"ws://127.0.0.1:{self._control}/control/ws",
            "BOX__ENABLED": "false",
        }
        runtime = ["-m", "langbot_plugin.cli.__init__", "rt", "--ws-control-port", str(self._control)]
        self._start([python, *runtime, "--ws-debug-port", str(free_port())], environment, "runtime")
        self._start([python, "-m", "langbot", "--standalone-runtime"], environment, "langbot")
        wait_for(lambda: self.call("GET", "/user/init"), "LangBot")
        account = {"user": "a@example.org", "password": secrets.token_urlsafe(16)}
        self.call("POST", "/user/init", account)
        self.token = self.call("POST", "/user/auth", account)["token"]
        self.workspace = self.call("GET", "/workspaces/bootstrap")["workspaces"][0]["workspace"]["uuid"]

    def call(self, method: str, path: str, body: typing.Any = None, kind: str = "application/json") -> typing.Any:
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self._api}/api/v1{path}", content, method=method)
        for name, value in {
            "content-type": kind,
            "authorization": f"Bearer {self.token}" if self.token else "",
            "x-workspace-id": self.workspace,
        }.items():
            if value:
                request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()[:500]}") from error

    def create_pipelines(self) -> dict[str, str]:
        provider = {
            "name": "P",
            "requester": "openai-chat-completions",
            "base_url": self.upstream.url,
            "api_keys": ["k-model"],
        }
        provider_id = self.call("POST", "/provider/providers", provider)["uuid"]
        model = {"name": "m", "provider_uuid": provider_id, "abilities": ["vision"], "extra_args": {}}
        model_id = self.call("POST", "/provider/models/llm", model)["uuid"]
        settings = {
            "Assistant": (_LOCAL_AGENT, {"model": {"primary": model_id, "fallbacks": []}}),
            "Support": (_DIFY, {"base-url": self.upstream.url, "api-key": "k-dify", "app-type": "chat"}),
        }
        made = {}
        for name, (runner, config) in settings.items():
            pipeline = self.call("POST", "/pipelines", {"name": name, "description": ""})["uuid"]
            self.set_runner(pipeline, runner, config)
            made[name] = pipeline
        return made

    def set_runner(self, pipeline: str, runner: str, config: dict[str, typing.Any]) -> None:
        found = self.call("GET", f"/pipelines/{pipeline}")["pipeline"]["config"]
        found["ai"] = {"runner": {"id": runner, "expire-time": 0}, "runner_config": {runner: config}}
        self.call("PUT", f"/pipelines/{pipeline}", {"config": found})

    def upload_plugin(self) -> None:
        before = os.getcwd()
        os.chdir(PLUGIN)
        try:
            from langbot_plugin.cli.commands.buildplugin import build_plugin_process

            package = Path(build_plugin_process(str(self.directory))).read_bytes()
        finally:
            os.chdir(before)
        head = b'--x\r\ncontent-disposition: form-data; name="file"; filename="r.lbpkg"\r\n\r\n'
        form = head + package + b"\r\n--x--\r\n"
        self.call("POST", "/plugins/install/local", form, "multipart/form-data; boundary=x")
        wait_for(lambda: "RunnelAgent" in json.dumps(self.call("GET", "/plugins")), "installed plugin")
        wait_for(lambda: _RUNNER in json.dumps(self.call("GET", "/pipelines/_/metadata")), "runner")

    # Runnel

    def migrate(self) -> dict[str, str]:
        """Steps 2 to 4 of the page, with the addresses and values of this test."""
        text = _PAGE.read_text()
        steps = re.split(r"^## (?=\d)", text, flags=re.MULTILINE)
        ports = {"local-agent": free_port(), "connectors": free_port(), "gateway": free_port()}
        environment = {
            **os.environ,
            "PATH": f"{Path(binary()).parent}:{os.environ['PATH']}",
            "LOCAL_AGENT_LISTEN": f"127.0.0.1:{ports['local-agent']}",
            "RUNNEL__SERVER__LISTEN": f"127.0.0.1:{ports['gateway']}",
            "CONNECTOR_SUPPORT_API_KEY": "k-dify",
            "RUNNEL_CONNECTORS_LISTEN": f"127.0.0.1:{ports['connectors']}",
        }
        command = next(line for line in commands(steps[2]) if "--write" in line)
        command = command.replace("http://127.0.0.1:9120", f"http://127.0.0.1:{ports['connectors']}")
        self._bash(command.replace("2>report.txt", "2>report.txt || { cat report.txt; false; }"), environment)
        host = self.upstream.url.split("/")[2]
        report = (self.directory / "report.txt").read_text()
        hosts = dict(re.findall(r"^  (CONNECTOR_\w+_HOSTS)=(\S+): ", report, flags=re.MULTILINE))
        assert hosts == {"CONNECTOR_SUPPORT_API_KEY_HOSTS": host}, report
        environment |= hosts
        written = self.directory / "runnel.toml"
        moved = written.read_text().replace("127.0.0.1:9101", f"127.0.0.1:{ports['local-agent']}")
        written.write_text(moved)
        exports = [
            line.partition(" # ")[0] for line in commands(steps[3]) if line.startswith("export ") and "…" not in line
        ]
        assert len(exports) == 3, exports
        named = set(re.findall(r"env:([A-Z_]+)", moved)) - {"CONNECTOR_SUPPORT_API_KEY"}
        # The values of LangBot's own secrets.
        exports += [f"export {name}=k-model" for name in named if name.endswith("_API_KEY")]
        shell = "\n".join(exports)
        printed = self._bash(f"{shell}\nenv -0", environment).split("\0")
        environment = dict(pair.split("=", 1) for pair in printed if "=" in pair)
        assert "the configuration is valid" in self._bash("runnel check-config", environment)
        started = [line for line in fenced(steps[4])[0] if not line.startswith("#")]
        assert len(started) == 3, started
        for number, line in enumerate(started):
            line = line.replace("--allow n8n.internal:5678", f"--allow {host}")
            self._start(["bash", "-c", f"exec env {line}"], environment, f"step-4-{number}")
        url = f"http://127.0.0.1:{ports['gateway']}"
        wait_for(lambda: urllib.request.urlopen(f"{url}/readyz", timeout=5).status == 200, "gateway")
        wait_for(lambda: self._is_ready(self._bash("runnel check-config --probe || true", environment)), "runners")
        key = self._bash("runnel token create --role client --name langbot | tail -1", environment).strip()
        return {"url": url, "api-key": key}

    @staticmethod
    def _is_ready(probe: str) -> bool:
        """True if runners and agents are ready. LangBot's own provider may be out of reach."""
        lines = [line for line in probe.splitlines() if line.startswith(("runner endpoint", "agent "))]
        return len(lines) == 4 and not any("FAILED" in line for line in lines)

    def _bash(self, script: str, environment: dict[str, str]) -> str:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        assert done.returncode == 0, f"{script}: {done.stdout}{done.stderr}"
        return done.stdout

    def _start(self, command: list[str], environment: dict[str, str], name: str) -> None:
        with open(self.directory / f"{name}.log", "wb") as log:
            made = subprocess.Popen(
                command, cwd=self.directory, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self._running.append(made)

    def stop(self) -> None:
        for process in reversed(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def logs(self) -> str:
        files = sorted(self.directory.glob("*.log"))
        return "\n".join(f"== {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def say(self, pipeline: str, chain: list[dict[str, typing.Any]]) -> str:
        """Sends a message over the WebSocket. Returns the text of the answer."""
        from websockets.sync.client import connect
        from websockets.typing import Origin

        url = f"ws://127.0.0.1:{self._api}/api/v1/pipelines/{pipeline}/ws/connect?session_type=person"
        with connect(url, max_size=None, origin=Origin(f"http://127.0.0.1:{self._api}")) as chat:
            authenticate = {"type": "authenticate", "token": self.token, "workspace_uuid": self.workspace}
            chat.send(json.dumps(authenticate))
            assert json.loads(chat.recv(_SECONDS))["type"] == "connected"
            chat.send(json.dumps({"type": "message", "message": chain, "stream": True}))
            while True:
                event = json.loads(chat.recv(_SECONDS))
                data = event.get("data") or {}
                if event["type"] == "response" and data.get("is_final"):
                    return str(data["content"])


def fenced(step: str) -> list[list[str]]:
    """The lines of each code block of a step."""
    return [block.strip().splitlines() for block in re.findall(r"```[^\n]*\n(.*?)```", step, flags=re.DOTALL)]


def commands(step: str) -> list[str]:
    """The commands of a step's consoles."""
    return [line[2:] for block in fenced(step) for line in block if line.startswith("$ ")]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> typing.Iterator[Walk]:
    if not os.environ.get("RUNNEL_TEST_LANGBOT"):
        pytest.skip("RUNNEL_TEST_LANGBOT names no Python with LangBot: nothing was tested against LangBot itself")
    upstream = Upstream()
    made = Walk(tmp_path_factory.mktemp("walk"), upstream)
    try:
        made.start_langbot()
        yield made
    except BaseException:
        print(made.logs())
        raise
    finally:
        made.stop()
        upstream.close()


def test_migrated_langbot_answers_over_its_websocket(walk: Walk) -> None:
    pipelines = walk.create_pipelines()
    with sqlite3.connect(f"file:{walk.directory}/data/langbot.db?mode=ro", uri=True) as database:
        assert database.execute("SELECT count(*) FROM legacy_pipelines").fetchone()[0] >= 2
    settings = walk.migrate()
    walk.upload_plugin()
    for pipeline in pipelines.values():
        walk.set_runner(pipeline, _RUNNER, settings)
    picture = f"data:image/png;base64,{base64.b64encode(_PNG).decode()}"
    try:
        # The first message after a start of LangBot is query 0.
        for turn in ("one", "two"):
            assert walk.say(pipelines["Assistant"], [{"type": "Plain", "text": turn}]) == f"Model: {turn}"
            assert walk.say(pipelines["Support"], [{"type": "Plain", "text": turn}]) == f"Dify: {turn}"
        seen = [{"type": "Plain", "text": "look"}, {"type": "Image", "base64": picture}]
        assert walk.say(pipelines["Assistant"], seen) == "Model: look (1 pictures)"
        assert walk.say(pipelines["Support"], seen) == "Dify: look"
        uploads = [path for path, _, _ in walk.upstream.requests if path.endswith("/files/upload")]
        assert len(uploads) == 1
    except BaseException:
        print(walk.logs())
        raise
