"""Runs of a plugin through the bridge, with the SDK's own classes and a host API in memory."""

import json
import time

import pytest

from bridge_process import RUNNER, Bridge, last_content, run_request, signed, streamed, types
from fake_gateway import FakeGateway, data_url

SDK_ERRORS = {
    # The host API has no counterpart: the SDK's own exception with a code.
    "call_platform_api": "not_found",
    "send_message": "not_found",
    "reply_message": "not_found",
    "reply_files": "not_found",
    "get_box_status": "not_found",
    "list_boxes": "not_found",
    "acquire_box": "not_found",
    "bind_box": "not_found",
    "import_box_attachments": "not_found",
    "export_box_files": "not_found",
}
DENIED = {"reply_stream", "run_finalize"}


def outcomes(probe: Bridge, gateway: FakeGateway, *names: str) -> dict:
    return json.loads(last_content(probe.run(" ".join(["calls", *names]), gateway).all()))


def test_streams_increments_and_one_message(probe: Bridge, gateway: FakeGateway) -> None:
    found = probe.run("echo hello big world", gateway).all()
    chunks = [result["data"]["chunk"]["content"] for result in found if result["type"] == "message.delta"]
    assert chunks == ["hello", " big", " world"]
    assert last_content(found) == "hello big world"
    assert types(found)[-2:] == ["message.completed", "run.completed"]


def test_plugin_uses_every_call_of_the_proxy(probe: Bridge, gateway: FakeGateway) -> None:
    offered, used = json.loads(last_content(probe.run("call_names", gateway).all()))
    assert used == offered


def test_every_call_reaches_the_host_or_raises(probe: Bridge, gateway: FakeGateway) -> None:
    found = outcomes(probe, gateway)
    failed = {name: outcome["api_error"] for name, outcome in found.items() if "api_error" in outcome}
    assert failed == SDK_ERRORS
    assert {name for name, outcome in found.items() if "denied" in outcome} == DENIED
    answers = {name: outcome["ok"] for name, outcome in found.items() if "ok" in outcome}
    assert answers["get_prompt"] == [{"role": "system", "content": "Be brief."}]
    assert answers["count_tokens"] == 7
    assert answers["invoke_llm"]["content"] == "I say hello"
    assert answers["invoke_llm_with_usage"]["usage"]["total_tokens"] == 4
    assert [chunk.get("content") for chunk in answers["invoke_llm_stream"]] == ["I ", "say", None]
    assert answers["invoke_llm_stream_events"][-1]["usage"]["total_tokens"] == 4
    assert answers["get_plugin_storage"] == "0001"
    assert answers["get_plugin_storage_keys"] == ["a/b.c", "last"]
    assert answers["state_get"] == {"value": {"n": 1}}
    assert answers["state_delete"] == {"success": True}
    assert answers["retrieve_knowledge"][0]["content"][0]["text"] == "brie"
    assert answers["call_tool"] == "12:00"
    assert answers["run_append_result"]["type"] == "processor.log"
    assert answers["event_page"]["items"][0]["event_id"] == "e-1"
    assert "PUT /storage/plugin/a%2Fb.c" in gateway.paths()
    assert gateway.body_of("POST /steering/pull") == {"mode": "all"}
    sent = gateway.body_of("POST /models/small/invoke")
    assert (sent["tools"][0]["name"], sent["messages"][0]["content"]) == ("f", "hello")


def test_absent_state_is_null_and_not_deleted(probe: Bridge, gateway: FakeGateway) -> None:
    found = outcomes(probe, gateway, "state_get", "state_delete")
    assert found == {"state_get": {"ok": {"value": None}}, "state_delete": {"ok": {"success": False}}}


def test_host_errors_keep_code_and_details(probe: Bridge, gateway: FakeGateway) -> None:
    error = {"code": "rate_limited", "message": "wait", "retryable": True, "details": {"reason": "budget"}}
    gateway.refuses["/models/small/invoke"] = 429, error
    found = outcomes(probe, gateway, "invoke_llm")["invoke_llm"]
    assert found["api_error"] == "rate_limited"
    assert found["details"] == {"action": "invoke_llm", "status": 429, "reason": "budget"}


def test_unreachable_host_raises_the_sdks_error(probe: Bridge, gateway: FakeGateway) -> None:
    message = run_request("calls get_prompt", gateway)
    message["host"]["base_url"] = "http://127.0.0.1:9/host/v1"
    found = probe.request("POST", "/runs", json.dumps(message).encode()).all()
    assert json.loads(last_content(found))["get_prompt"]["api_error"] == "runtime_error"


def test_cancel_ends_a_run_as_cancelled(probe: Bridge, gateway: FakeGateway) -> None:
    stream = probe.run("wait", gateway, run_id="r-cancel")
    results = iter(stream)
    assert next(results)["type"] == "message.delta"
    began = time.monotonic()
    assert probe.cancel("r-cancel").status == 202
    last = list(results)[-1]
    assert (last["type"], last["data"]["code"]) == ("run.failed", "cancelled")
    assert time.monotonic() - began < 1.5
    assert probe.cancel("r-cancel").status == 404


def test_runner_that_polls_ends_by_itself(probe: Bridge, gateway: FakeGateway) -> None:
    results = iter(probe.run("", gateway, "plugin:tester/probe/polite", run_id="r-polite"))
    assert next(results)["type"] == "message.delta"
    assert probe.cancel("r-polite").status == 202
    gateway.cancel_requested_at = 1
    assert types(list(results)) == ["message.completed", "run.failed"]


def test_deadline_ends_a_run(probe: Bridge, gateway: FakeGateway) -> None:
    runtime = {"deadline_at": time.time() + 0.3, "metadata": {}}
    last = probe.run("wait", gateway, runtime=runtime).all()[-1]
    assert (last["data"]["code"], last["data"]["retryable"]) == ("runner.timeout", True)


def test_deadline_is_shifted_to_this_clock(probe: Bridge, gateway: FakeGateway) -> None:
    there = int(time.time()) + 100
    body = json.dumps(run_request("deadline", gateway, runtime={"deadline_at": there + 60.0})).encode()
    found = probe.request("POST", "/runs", body, signed(body, there)).all()
    assert 55 < json.loads(last_content(found)) - time.time() < 62


def test_token_is_renewed_before_it_ends(probe: Bridge, gateway: FakeGateway) -> None:
    message = run_request("wait", gateway, run_id="r-token")
    message["host"]["token_expires_at"] = int(time.time()) + 1
    results = iter(probe.request("POST", "/runs", json.dumps(message).encode()))
    next(results)
    deadline = time.monotonic() + 5
    while "POST /token" not in gateway.paths():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    probe.cancel("r-token")
    list(results)
    assert gateway.requests[0][2]["authorization"] == "Bearer run-token"


def test_steering_delivers_messages_during_a_run(probe: Bridge, gateway: FakeGateway) -> None:
    results = iter(probe.run("steer", gateway))
    next(results)
    event = {"event_id": "e-2", "event_type": "message.received", "source": "api"}
    item = {"claimed_run_id": "r", "runner_id": RUNNER, "event": event, "input": {"text": "and this"}}
    gateway.steered.append(item)
    assert last_content(list(results)) == "and this"


def test_artifacts_of_the_event_come_as_base64(probe: Bridge, gateway: FakeGateway) -> None:
    gateway.artifacts = {"a-1": (b"p" * 90_000, "image/png"), "a-2": (b"pdf", "application/pdf")}
    given = {
        "text": "sizes",
        "contents": [
            {"type": "image_url", "image_url": {"url": "artifact:a-1"}},
            {"type": "file_url", "file_url": "artifact:a-2", "file_name": "b.pdf"},
        ],
        "attachments": [
            {"type": "image", "url": "artifact:a-1", "name": "a.png"},
            {"type": "image", "url": "artifact:a-1", "name": "again.png"},
        ],
    }
    found = probe.run("", gateway, input=given).all()
    contents, attachments = json.loads(last_content(found))
    size = len(data_url(b"p" * 90_000, "image/png"))
    assert contents == [size, len(data_url(b"pdf", "application/pdf"))]
    assert attachments == [["base64", "a.png", size]]


@pytest.mark.parametrize(
    "given",
    [
        # Files in the parts.
        {
            "contents": [
                {"type": "text", "text": "media"},
                {"type": "image_url", "image_url": {"url": "artifact:a-1"}},
                {"type": "file_url", "file_url": "artifact:a-2", "file_name": "b.pdf"},
                {"type": "image_base64", "image_base64": "data:image/gif;base64,R0lG"},
            ]
        },
        # Parts that name their attachments, in either list.
        *(
            {
                name: [
                    {"type": "text", "text": "media"},
                    {"type": "image", "ref": "attachment-0"},
                    {"type": "file", "ref": "attachment-1"},
                    {"type": "image", "ref": "attachment-2"},
                ],
                "attachments": [
                    {"ref": "attachment-0", "type": "image", "mime_type": "image/png", "url": "artifact:a-1"},
                    {"ref": "attachment-1", "type": "file", "source": "artifact", "id": "a-2", "name": "b.pdf"},
                    {"ref": "attachment-2", "type": "image", "content": "data:image/gif;base64,R0lG"},
                ],
            }
            for name in ("parts", "contents")
        ),
    ],
)
def test_both_shapes_of_media_reach_the_plugin(probe: Bridge, gateway: FakeGateway, given: dict) -> None:
    gateway.artifacts = {"a-1": (b"png", "image/png"), "a-2": (b"pdf", "application/pdf")}
    found = json.loads(last_content(probe.run("", gateway, input={"text": "given", **given}).all()))
    assert found["contents"] == [
        {"type": "text", "text": "media"},
        {"type": "image_base64", "image_base64": data_url(b"png", "image/png")},
        {"type": "file_base64", "file_base64": data_url(b"pdf", "application/pdf"), "file_name": "b.pdf"},
        {"type": "image_base64", "image_base64": "data:image/gif;base64,R0lG"},
    ]


@pytest.mark.parametrize("named", ["none", "..", "../run/events?x=", ""])
def test_unreadable_artifact_stays_with_a_note(probe: Bridge, gateway: FakeGateway, named: str) -> None:
    url = f"artifact:{named}"
    given = {"text": "given", "contents": [{"type": "image_url", "image_url": {"url": url}}]}
    found = probe.run("", gateway, input=given).all()
    assert f"{url} stays a reference" in found[0]["data"]["text"]
    assert json.loads(last_content(found))["contents"][0]["image_url"]["url"] == url
    assert not any("/events" in path or ".." in path.split("/") for path in gateway.paths())


def test_large_pictures_become_artifacts(probe: Bridge, gateway: FakeGateway) -> None:
    found = probe.run("picture", gateway).all()
    assert types(found) == ["artifact.created", "message.completed", "run.completed"]
    announced = found[0]["data"]["artifact_id"]
    assert last_content(found)[1] == {"type": "image_url", "image_url": {"url": f"artifact:{announced}"}}
    assert found[1]["data"]["file_ids"] == [announced]
    content, kind = gateway.artifacts[announced]
    assert (len(content), kind) == (75_006, "image/png")


def test_message_reports_refused_upload(probe: Bridge, gateway: FakeGateway) -> None:
    gateway.refuses["/artifacts"] = 403, {"code": "forbidden", "message": "not granted", "retryable": False}
    found = probe.run("picture", gateway).all()
    assert "image-2 was not delivered: not granted" in last_content(found)[1]["text"]


def test_state_without_its_scope_is_left_out(probe: Bridge, gateway: FakeGateway) -> None:
    state = {"conversation": {"probe.count": 4}}
    found = probe.run("state", gateway, state=state).all()
    updates = [result["data"] for result in found if result["type"] == "state.updated"]
    assert updates == [{"scope": "conversation", "key": "probe.count", "value": 5}]


def test_secrets_come_from_allowed_variables(probe: Bridge, gateway: FakeGateway) -> None:
    found = probe.run("config", gateway, config={"api": {"keys": ["env:BRIDGE_KEY"]}}).all()
    assert json.loads(last_content(found)) == {"api": {"keys": ["opens-sesame"]}, "tone": "dry"}


@pytest.mark.parametrize("name", ["OTHER_KEY", "BRIDGE_ABSENT", "LANGBOT_BRIDGE_SECRET"])
def test_other_variables_are_config_errors(probe: Bridge, gateway: FakeGateway, name: str) -> None:
    last = probe.run("config", gateway, config={"api-key": f"env:{name}"}).all()[-1]
    assert last["data"]["code"] == "runner.config_invalid"
    assert name in last["data"]["error"]
    assert "config/api-key" in last["data"]["error"]
    assert "stays-here" not in last["data"]["error"]


def test_plugin_sees_no_signing_secret(probe: Bridge, gateway: FakeGateway) -> None:
    assert last_content(probe.run("environment LANGBOT_BRIDGE_SECRET", gateway).all()) == "None"
    assert last_content(probe.run("environment LANGBOT_BRIDGE_MCP_TOKEN", gateway).all()) == "None"


def test_exceptions_fail_the_run(probe: Bridge, gateway: FakeGateway) -> None:
    found = probe.run("raises", gateway).all()
    assert types(found) == ["message.delta", "run.failed"]
    assert found[-1]["data"]["code"] == "runner.exception"
    assert "broken on purpose" in found[-1]["data"]["error"]


def test_results_of_another_run_fail(probe: Bridge, gateway: FakeGateway) -> None:
    assert probe.run("foreign", gateway).all()[-1]["data"]["code"] == "runner.exception"


def test_invalid_context_fails_the_run(probe: Bridge, gateway: FakeGateway) -> None:
    last = probe.run("echo", gateway, trigger={"source": "nowhere"}).all()[-1]
    assert last["data"]["code"] == "runner.context_invalid"


def test_long_messages_go_as_deltas(probe: Bridge, gateway: FakeGateway) -> None:
    stream = probe.run("long 300000", gateway)
    found = stream.all()
    assert set(types(found)) == {"message.delta", "run.completed"}
    assert streamed(found) == "ü" * 300_000
    assert all(len(json.dumps(result, ensure_ascii=False).encode()) < 262_144 for result in found)


def test_long_results_are_shortened(probe: Bridge, gateway: FakeGateway) -> None:
    found = probe.run("long_result 300000", gateway).all()
    assert types(found) == ["tool.call.completed", "processor.log", "run.completed"]
    assert found[0]["data"]["result"]["truncated"] is True


def test_interactions_pass(probe: Bridge, gateway: FakeGateway) -> None:
    found = probe.run("ask", gateway).all()
    assert found[0]["data"]["action"] == "interaction.requested"
    assert found[0]["data"]["payload"]["interaction_id"] == "sure"


def test_code_of_the_cancel_wins(probe: Bridge, gateway: FakeGateway) -> None:
    results = iter(probe.run("stubborn", gateway, run_id="r-stubborn"))
    next(results)
    probe.cancel("r-stubborn")
    last = list(results)[-1]
    assert (last["type"], last["data"]["code"]) == ("run.failed", "cancelled")
    # The model call learns of the cancel before the request to the bridge arrives.
    gateway.refuses["/models/small/invoke"] = 409, {"code": "cancelled", "message": "cancelled", "retryable": False}
    last = probe.run("ask_model", gateway).all()[-1]
    assert (last["type"], last["data"]["code"]) == ("run.failed", "cancelled")
    gateway.refuses["/models/small/invoke"] = 502, {"code": "upstream", "message": "broken", "retryable": True}
    assert probe.run("ask_model", gateway).all()[-1]["data"]["code"] == "runner.llm_error"


def test_steered_run_keeps_its_first_answer(probe: Bridge, gateway: FakeGateway) -> None:
    results = iter(probe.run("answers", gateway))
    found = [next(results)]
    event = {"event_id": "e-2", "event_type": "message.received", "source": "api"}
    item = {"claimed_run_id": "r", "runner_id": RUNNER, "event": event, "input": {"text": "and this"}}
    gateway.steered.append(item)
    found += list(results)
    contents = [one["data"]["message"]["content"] for one in found if one["type"] == "message.completed"]
    assert contents == ["the first answer", "the answer to and this"]
