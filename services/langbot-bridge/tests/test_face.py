"""The HTTP face: manifests, signatures, bounds, tools, processes."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bridge_process import (
    HELLO,
    PLUGINS,
    RUNNER,
    SECRET,
    TOKEN,
    Bridge,
    bridge,
    last_content,
    run_request,
    signed,
    streamed,
)
from fake_gateway import FakeGateway

PROBE = str(PLUGINS / "probe")


def manifests(started: Bridge) -> dict[str, dict]:
    return {runner["id"]: runner for runner in started.request("GET", "/runners").body()["runners"]}


def test_manifest_has_the_declarations_of_the_component(probe: Bridge) -> None:
    found = manifests(probe)
    assert set(found) == {
        f"plugin:tester/probe/{name}" for name in ("default", "polite", "handlers", "default-events", "conforming")
    }
    manifest = found[RUNNER]
    assert manifest["label"] == {"en_US": "Probe", "zh_Hans": "探针"}
    assert manifest["capabilities"] == {
        "streaming": True,
        "tool_calling": True,
        "multimodal_input": True,
        "steering": True,
        "interactions": True,
        "interrupt": True,
        "resumable": True,
    }
    assert manifest["permissions"]["models"] == ["invoke", "stream", "rerank", "count_tokens"]
    assert manifest["permissions"]["artifacts"] == ["metadata", "read", "create"]
    assert manifest["config_schema"][0]["default"] == "dry"
    assert manifest["metadata"]["plugin_version"] == "1.2.3"
    assert found["plugin:tester/probe/handlers"]["supported_event_patterns"] == ["message.received", "group.*"]
    ears = found["plugin:tester/probe/default-events"]
    assert (ears["usages"], ears["name"]) == (["event"], "default-events")
    assert ears["supported_event_patterns"] == ["group.member_joined", "message.received"]


def test_refuses_unsigned_changed_and_old_requests(probe: Bridge) -> None:
    body = b'{"action":"list_runners"}'
    good = signed(body)
    for headers, sent in [
        ({}, body),
        (good, body + b" "),
        ({**good, "webhook-id": "another"}, body),
        (signed(body, int(time.time()) - 301), body),
        ({**good, "webhook-signature": "v1,AAAA v1a,xyz"}, body),
    ]:
        answer = probe.request("POST", "/", sent, headers)
        assert (answer.status, answer.body()["error"]["code"]) == (401, "unauthenticated")


def test_refuses_a_message_id_twice(probe: Bridge) -> None:
    headers = signed(b"")
    assert probe.request("GET", "/runners", b"", headers).status == 200
    assert probe.request("GET", "/runners", b"", headers).status == 409


def test_single_url_tells_calls_by_action(probe: Bridge, gateway: FakeGateway) -> None:
    def post(message: dict):
        return probe.request("POST", "/", json.dumps(message).encode())

    assert len(post({"action": "list_runners"}).body()["runners"]) == 5
    results = iter(post({"action": "run", **run_request("wait", gateway, run_id="r-single")}))
    next(results)
    assert post({"action": "cancel", "run_id": "r-single"}).status == 202
    assert list(results)[-1]["data"]["code"] == "cancelled"
    assert post({"action": "dance"}).status == 400


def test_refuses_malformed_run_requests(probe: Bridge, gateway: FakeGateway) -> None:
    assert probe.run("echo", gateway, runner="plugin:tester/probe/none").status == 404
    assert probe.request("POST", "/runs", b"[]").status == 400
    message = run_request("echo", gateway)
    message["host"]["token"] = ""
    answer = probe.request("POST", "/runs", json.dumps(message).encode())
    assert (answer.status, answer.body()["error"]["message"][:11]) == (400, "/host/token")
    assert probe.request("GET", "/nowhere").status == 404


def test_refuses_a_live_run_again(probe: Bridge, gateway: FakeGateway) -> None:
    stream = probe.run("wait", gateway, run_id="r-twice")
    next(iter(stream))
    assert probe.run("wait", gateway, run_id="r-twice").status == 409
    stream.close()


def test_refuses_bodies_above_the_limit(probe: Bridge) -> None:
    body = b" " * (8 * 1024 * 1024 + 1)
    assert probe.request("POST", "/runs", body).status == 413


def test_health_needs_no_signature(probe: Bridge) -> None:
    answer = probe.request("GET", "/healthz", b"", {})
    assert (answer.status, answer.body()["status"]) == (200, "ok")


def test_tools_are_listed_and_called(probe: Bridge) -> None:
    started = probe.call_tool("initialize", {"protocolVersion": "2025-06-18"})["result"]
    assert (started["protocolVersion"], started["capabilities"]) == ("2025-06-18", {"tools": {}})
    [tool] = probe.call_tool("tools/list")["result"]["tools"]
    assert (tool["name"], tool["description"]) == ("add", "Adds two numbers.")
    assert tool["inputSchema"]["required"] == ["a", "b"]
    called = probe.call_tool("tools/call", {"name": "add", "arguments": {"a": 2, "b": 3}})["result"]
    assert called["structuredContent"] == {"sum": 5, "for": "mcp"}
    assert json.loads(called["content"][0]["text"])["sum"] == 5


def test_failed_tools_answer_with_an_error(probe: Bridge) -> None:
    called = probe.call_tool("tools/call", {"name": "add", "arguments": {"a": 2}})["result"]
    assert called["isError"] is True
    # A tool belongs to no run, so nothing grants it a call of the host.
    host = probe.call_tool("tools/call", {"name": "add", "arguments": {"host": 1}})["result"]
    assert "belongs to no live run" in host["content"][0]["text"]
    assert probe.call_tool("tools/call", {"name": "none"})["error"]["code"] == -32602
    assert probe.call_tool("dance")["error"]["code"] == -32601


def test_tools_need_the_token(probe: Bridge) -> None:
    assert probe.request("POST", "/mcp", b"{}", {"authorization": "Bearer x"}).status == 401


def test_one_process_serves_each_plugin(gateway: FakeGateway) -> None:
    with bridge(PROBE, "--all", str(HELLO.parent), LANGBOT_BRIDGE_MCP_TOKEN="") as started:
        found = manifests(started)
        assert "plugin:runnel/hello/default" in found
        assert RUNNER in found
        pids = children(started)
        assert len(pids) == 2
        hello = started.run("big world", gateway, "plugin:runnel/hello/default").all()
        assert streamed(hello) == "Hello, big world"
        # Without a token, tools are not served.
        assert started.request("POST", "/mcp", b"{}", {"authorization": "Bearer "}).status == 404


def test_slow_and_broken_plugins_leave_others_served(gateway: FakeGateway, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with bridge(str(PLUGINS / "slow"), str(HELLO), str(PLUGINS / "broken"), SLOW_PLUGIN_GO=str(go)) as started:
        assert started.ids == ["plugin:runnel/hello/default"]
        answer = started.request("GET", "/runners").body()
        assert [runner["id"] for runner in answer["runners"]] == started.ids
        missing = {one["plugin"]: one["reason"] for one in answer["unavailable"]}
        assert missing["slow"] == "it is starting"
        assert "broken was not loaded" in missing["broken"]
        health = started.request("GET", "/healthz", b"", {})
        assert (health.status, health.body()["down"]) == (200, ["slow", "broken"])
        assert streamed(started.run("world", gateway, "plugin:runnel/hello/default").all()) == "Hello, world"
        go.touch()
        deadline = time.monotonic() + 20
        while "plugin:tester/slow/default" not in manifests(started):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert streamed(started.run("world", gateway, "plugin:tester/slow/default").all()) == "Hello, world"


@pytest.mark.parametrize("by_file", [False, True], ids=["variable", "file"])
def test_plugins_cannot_read_the_bridges_secrets(gateway: FakeGateway, tmp_path: Path, by_file: bool) -> None:
    (tmp_path / "secret").write_text(SECRET)
    # A value of this test's own, as other tests run at the same time.
    token = f"token-{os.urandom(8).hex()}"
    environment = {"LANGBOT_BRIDGE_MCP_TOKEN": token}
    if by_file:
        environment["LANGBOT_BRIDGE_SECRET_FILE"] = str(tmp_path / "secret")
    with bridge(PROBE, **environment) as started:
        shown, openable = json.loads(last_content(started.run(f"peek {token}", gateway).all()))
        assert (shown, openable) == ([], [])
        assert json.loads(last_content(started.run(f"peek {tmp_path}/secret", gateway).all()))[0] == []


def nested(depth: int) -> bytes:
    return b'{"context":' + b"[" * depth + b"]" * depth + b"}"


@pytest.mark.parametrize("depth", [2_000, 200_000])
def test_refuses_deeply_nested_bodies(probe: Bridge, depth: int) -> None:
    for path in ("/runs", "/"):
        answer = probe.request("POST", path, nested(depth))
        assert (answer.status, answer.body()["error"]["code"]) == (400, "invalid_argument")
    answer = probe.request("POST", "/mcp", nested(depth), {"authorization": f"Bearer {TOKEN}"})
    assert (answer.status, answer.body()["error"]["code"]) in [(400, -32700), (400, -32600)]


@pytest.mark.parametrize("depth", [100, 300, 500, 900, 990])
def test_nested_contexts_fail_without_a_500(probe: Bridge, gateway: FakeGateway, depth: int) -> None:
    message = run_request("echo hello", gateway)
    body = json.dumps({**message, "more": "DEEP"}).replace('"DEEP"', "[" * depth + "]" * depth)
    assert probe.request("POST", "/runs", body.encode()).status in (200, 400)


def test_identities_replace_the_plugins_own() -> None:
    identities = ["--identity", "langbot/probe", "--identity", "tester/probe=langbot-team/Probe"]
    with bridge(PROBE, *identities) as started:
        found = manifests(started)
    for identity in ("langbot/probe", "langbot-team/Probe"):
        assert f"plugin:{identity}/default" in found
        assert f"plugin:{identity}/default-events" in found
    assert not any(runner.startswith("plugin:tester/") for runner in found)


def test_dead_worker_is_restarted(gateway: FakeGateway) -> None:
    with bridge(PROBE) as started:
        stream = started.run("die", gateway)
        ends = []
        with contextlib.suppress(OSError, http.client.HTTPException):
            ends += [result["type"] for result in stream if result["type"].startswith("run.")]
        assert ends == []
        # Its runners are listed while it is away, and their runs are refused with a time to wait.
        assert RUNNER in manifests(started)
        deadline = time.monotonic() + 20
        while (again := started.run("echo again", gateway)).status == 503:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert streamed(again.all()) == "again"
        assert started.request("GET", "/healthz", b"", {}).status == 200


def test_stop_ends_runs_as_retryable(gateway: FakeGateway) -> None:
    with bridge(PROBE) as started:
        results = iter(started.run("wait", gateway))
        next(results)
        started.process.terminate()
        last = list(results)[-1]
        assert (last["data"]["code"], last["data"]["retryable"]) == ("runner.shutdown", True)
        assert started.process.wait(10) == 0


def test_workers_end_with_the_bridge() -> None:
    with bridge(PROBE) as started:
        pids = children(started)
        started.process.send_signal(signal.SIGKILL)
        started.process.wait(10)
        deadline = time.monotonic() + 10
        while any(alive(pid) for pid in pids):
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "no plugin"),
        (["/nowhere"], "has no manifest.yaml"),
        ([PROBE, "--identity", "other/name=a/b"], "no plugin here is called other/name"),
        ([PROBE, str(HELLO), "--identity", "a/b"], "does not say of which plugin"),
        ([str(PLUGINS / "broken")], "was not loaded"),
    ],
)
def test_wrong_commands_name_the_correction(arguments: list[str], expected: str) -> None:
    ended = command(arguments, {"LANGBOT_BRIDGE_SECRET": SECRET})
    assert ended.returncode == 1
    assert expected in ended.stderr


def test_needs_a_signing_secret() -> None:
    assert "there is no signing secret" in command([PROBE], {}).stderr
    ended = command([PROBE], {"LANGBOT_BRIDGE_SECRET": "whsec_short"})
    assert "whsec_" in ended.stderr
    assert "short" not in ended.stderr


def command(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    system = {name: value for name, value in os.environ.items() if not name.startswith("LANGBOT_BRIDGE")}
    line = [sys.executable, "-m", "langbot_bridge.cli", "--port", "0", *arguments]
    return subprocess.run(line, env={**system, **environment}, capture_output=True, text=True, timeout=30, check=False)


def children(started: Bridge) -> list[int]:
    pid = started.process.pid
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
