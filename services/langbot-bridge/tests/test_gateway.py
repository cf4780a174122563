"""End to end: the real gateway, the bridge as its runner endpoint, a plugin with the SDK's own classes."""

import base64
import json
import typing

import pytest

from bridge_process import Bridge, last_content, streamed, types
from gateway_process import Gateway, binary
from test_runs import DENIED, SDK_ERRORS


@pytest.fixture(scope="module")
def real(probe: Bridge, tmp_path_factory: pytest.TempPathFactory) -> typing.Iterator[Gateway]:
    binary()
    started = Gateway(tmp_path_factory.mktemp("gateway"), probe.url)
    yield started
    started.stop()


def messages(found: list[dict]) -> list:
    return [event["data"]["message"]["content"] for event in found if event["type"] == "message.completed"]


def test_message_is_answered_and_stored(real: Gateway) -> None:
    conversation = {"conversation_id": "c-kept"}
    events = real.post("probe", "echo hello big world", conversation=conversation)
    found = events.all()
    assert streamed(found) == last_content(found) == "hello big world"
    assert real.get(f"/v1/runs/{events.run_id}")["status"] == "completed"
    history = real.get("/v1/conversations/c-kept/history")["items"]
    assert [item["content"] for item in history] == ["hello big world", "echo hello big world"]


def test_host_api_answers_every_proxy_call(real: Gateway) -> None:
    found = json.loads(last_content(real.post("steered", "calls").all()))
    failed = {name: outcome["api_error"] for name, outcome in found.items() if "api_error" in outcome}
    # The event came without a prompt of a pipeline.
    assert failed == SDK_ERRORS
    assert {name for name, outcome in found.items() if "denied" in outcome} == {*DENIED, "get_prompt"}
    answers = {name: outcome["ok"] for name, outcome in found.items() if "ok" in outcome}
    assert answers["count_tokens"] > 0
    assert "hello" in answers["invoke_llm"]["content"]
    assert "".join(chunk.get("content") or "" for chunk in answers["invoke_llm_stream"])
    assert answers["get_plugin_storage"] == "0001"
    assert answers["get_plugin_storage_keys"] == ["a/b.c"]
    assert answers["state_get"]["value"] == {"n": 1}
    assert answers["list_knowledge_bases"][0]["uuid"] == "notes"
    assert answers["event_get"]["event_type"] == "message.received"
    assert answers["run_cancel"]["cancel_requested_at"] is not None


def test_cancel_reaches_the_plugin(real: Gateway) -> None:
    events = real.post("probe", "wait")
    results = iter(events)
    assert next(results)["type"] == "message.delta"
    assert real.call("POST", f"/v1/runs/{events.run_id}/cancel", {}).status == 202
    assert list(results)[-1]["data"]["code"] == "cancelled"
    assert real.get(f"/v1/runs/{events.run_id}")["status"] == "cancelled"


def test_deadline_of_the_agent_holds(real: Gateway) -> None:
    events = real.post("brief", "wait")
    assert events.all()[-1]["type"] == "run.failed"
    assert real.get(f"/v1/runs/{events.run_id}")["status"] == "timeout"


def test_secret_of_the_configuration_is_resolved_here(real: Gateway) -> None:
    config = json.loads(last_content(real.post("probe", "config").all()))
    assert config["key"] == "opens-sesame"


def test_state_stays_in_its_conversation(real: Gateway) -> None:
    conversation = {"conversation_id": "c-state"}
    counts = [last_content(real.post("probe", "state", conversation=conversation).all()) for _ in range(2)]
    assert counts == ["1", "2"]


def test_large_files_go_both_ways(real: Gateway) -> None:
    content = b"\x89PNG\r\n\x1a\n" + b"p" * 100_000
    picture = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    given = {"text": "sizes", "contents": [{"type": "image_base64", "image_base64": picture}]}
    contents, attachments = json.loads(last_content(real.post("probe", "", input=given).all()))
    assert contents == [len(picture)]
    assert [attachment[2] for attachment in attachments] in ([], [len(picture)])

    found = real.post("probe", "picture").all()
    announced = next(event for event in found if event["type"] == "artifact.created")["data"]["artifact_id"]
    answer = real.call("GET", f"/v1/artifacts/{announced}/content")
    assert len(answer.read()) == 75_006
    assert last_content(found)[1]["image_url"]["url"] == f"artifact:{announced}"


def test_second_message_steers_a_live_run(real: Gateway) -> None:
    conversation = {"conversation_id": "c-steered"}
    results = iter(real.post("steered", "steer", conversation=conversation))
    assert next(results)["type"] == "message.delta"
    event = {
        "event_type": "message.received",
        "source": "steered",
        "conversation": conversation,
        "input": {"text": "and this"},
    }
    accepted = json.loads(real.call("POST", "/v1/events", event).read())
    assert accepted["steered"] is True
    assert last_content(list(results)) == "and this"


def test_steered_run_keeps_both_answers(real: Gateway) -> None:
    conversation = {"conversation_id": "c-answers"}
    events = real.post("steered", "answers", conversation=conversation)
    results = iter(events)
    first = next(results)
    event = {
        "event_type": "message.received",
        "source": "steered",
        "conversation": conversation,
        "input": {"text": "and this"},
    }
    assert json.loads(real.call("POST", "/v1/events", event).read())["steered"] is True
    found = [first, *results]
    assert streamed(found) == "the first answerthe answer to and this"
    assert messages(found) == ["the first answer", "the answer to and this"]
    output = real.get(f"/v1/runs/{events.run_id}")["output"]
    assert (output["content"], output["message_count"]) == ("the answer to and this", 2)
    history = real.get("/v1/conversations/c-answers/history")["items"]
    answers = [item["content"] for item in history if item["role"] == "assistant"]
    assert sorted(answers) == ["the answer to and this", "the first answer"]


def test_handlers_answer_events(real: Gateway) -> None:
    found = real.post("handlers", "good day").all()
    assert messages(found) == ["received good day from Ada in private", "one two"]
    data = {"type": "group.member_joined", "group": {"id": 7, "name": "Tea"}, "member": {"id": 1, "nickname": "Bob"}}
    joined = {"event_type": "group.member_joined", "data": data, "input": None}
    assert messages(real.post("ears", "", **joined).all()) == ["Bob joined Tea"]
    assert types(real.post("handlers", "", **joined).all())[-1] == "run.completed"


def test_plugin_tools_are_tools_of_the_gateway(real: Gateway) -> None:
    called = last_content(real.post("probe", "tool add").all())
    assert json.loads(called)["structured_content"] == {"sum": 5, "for": "mcp"}


def test_conform_finds_no_fault(real: Gateway, probe: Bridge) -> None:
    runner = "plugin:tester/probe/conforming"
    printed = real.command(
        "conform", probe.url, "--secret", "env:TEST_BRIDGE_SECRET", "--runner", runner, "--text", "hello big world"
    )
    assert "0 failed" in printed
