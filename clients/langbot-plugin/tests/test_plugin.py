"""The plugin, run by the SDK's own classes, against a gateway that misbehaves."""

import base64
import json
import time
import typing
import zipfile

import pytest
from langbot_plugin.api.entities.builtin.runner import RunnerManifest

from fake_gateway import RUN, FakeGateway
from langbot import PIPELINE, PLUGIN, Host, component, context, execute, execute_until, failure, messages, texts
from runnel_agent.media import media_of
from runnel_agent.settings import Settings

Config = dict[str, typing.Any]
COMPLETED = ("run.completed", {"finish_reason": "stop"})


def delta(content: str, **fields: object) -> tuple[str, dict]:
    return "message.delta", {"chunk": {"role": "assistant", "content": content, **fields}}


def reply(content: object) -> tuple[str, dict]:
    return "message.completed", {"message": {"role": "assistant", "content": content}}


def test_manifest_fits_langbots_entity() -> None:
    made = component()
    manifest = RunnerManifest(
        id="plugin:runnel/RunnelAgent/default",
        name=made.metadata.name,
        label=made.metadata.label.to_dict(),
        usages=made.spec["usages"],
        capabilities=made.spec["capabilities"],
        permissions=made.spec["permissions"],
        config_schema=made.spec["config"],
    )
    assert [item.name for item in manifest.config_schema] == ["url", "api-key", "source", "pipeline", "patience"]


def test_package_holds_the_code(tmp_path: typing.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from langbot_plugin.cli.commands.buildplugin import build_plugin_process

    monkeypatch.chdir(PLUGIN)
    with zipfile.ZipFile(build_plugin_process(str(tmp_path))) as package:
        names = set(package.namelist())
    assert {"manifest.yaml", "main.py", "requirements.txt", "runnel_agent/client.py"} <= names
    assert not any(name.startswith("dist/") for name in names)


def test_increments_become_snapshots(gateway: FakeGateway, config: Config) -> None:
    gateway.tell(delta("hel"), delta("lo"), delta("", all_content="Hello", is_final=True), reply("Hello"), COMPLETED)
    found = execute(context("hi", config))
    assert texts(found) == ["hel", "hello", "Hello"]
    assert messages(found) == ["Hello"]
    assert found[-1].type == "run.completed"


def test_event_has_the_data_of_langbot(gateway: FakeGateway, config: Config) -> None:
    gateway.tell(COMPLETED)
    execute(context("hi", config))
    [(headers, _)] = gateway.calls("POST /v1/events")
    event = gateway.posted()
    assert (headers["authorization"], headers["idempotency-key"]) == ("Bearer rnl_key", event["event_id"])
    assert event.pop("event_id").startswith("langbot-")
    assert event == {
        "event_type": "message.received",
        "source": "langbot",
        "event_time": 1_795_291_200,
        "bot_id": "bot-1",
        "pipeline_id": PIPELINE,
        "conversation": {"conversation_id": "person_1", "launcher_type": "person", "launcher_id": "1"},
        "actor": {"actor_type": "user", "actor_id": "1", "actor_name": "Ada", "metadata": {}},
        "input": {"text": "hi", "contents": [{"type": "text", "text": "hi"}], "attachments": []},
        "delivery": {
            "surface": "platform",
            "supports_streaming": True,
            "supports_edit": False,
            "supports_reaction": False,
            "automatic_reply": True,
            "platform_capabilities": {},
        },
        "data": {"type": "message.received", "message_chain": [{"type": "Image"}]},
    }


@pytest.mark.parametrize(
    ("setting", "langbots", "sent"),
    [("", PIPELINE, PIPELINE), (" p-1 ", PIPELINE, "p-1"), ("p-1", None, "p-1"), ("", None, None), ("", "", None)],
)
def test_pipeline_is_the_setting_or_langbots(
    gateway: FakeGateway, config: Config, setting: str, langbots: str | None, sent: str | None
) -> None:
    gateway.tell(COMPLETED)
    execute(context("hi", {**config, "pipeline": setting}), langbots)
    assert gateway.posted().get("pipeline_id") == sent


def test_launcher_and_bot_come_from_the_subject(gateway: FakeGateway, config: Config) -> None:
    gateway.tell(COMPLETED)
    details = {"launcher_type": "group", "launcher_id": 42, "sender_id": "7", "bot_uuid": "b-7"}
    subject = {"subject_type": "message", "subject_id": "m-1", "data": details}
    execute(context("hi", config, conversation={"conversation_id": "c"}, subject=subject))
    sent = gateway.posted()
    assert sent["conversation"] == {"conversation_id": "c", "launcher_type": "group", "launcher_id": "42"}
    assert sent["bot_id"] == "b-7"


def test_empty_members_are_absent(gateway: FakeGateway, config: Config) -> None:
    gateway.tell(COMPLETED)
    empty = {
        "subject": {"subject_type": "message", "subject_id": "", "data": {}},
        "actor": {"actor_type": "user", "actor_id": "", "actor_name": ""},
        "conversation": dict.fromkeys(("thread_id", "launcher_type", "launcher_id", "bot_id"), ""),
        "event": {"event_id": "m", "event_type": "message.received", "source": "x", "source_event_type": ""},
        "input": {"text": "hi", "contents": [{"type": "text", "text": ""}, {"type": "text", "text": "hi"}]},
    }
    execute(context("", config, **empty), "")
    sent = gateway.posted()
    assert sent["subject"] == {"subject_type": "message", "data": {}}
    assert sent["actor"] == {"actor_type": "user", "metadata": {}}
    assert sent["input"]["contents"] == [{"type": "text", "text": "hi"}]
    assert not {"conversation", "bot_id", "source_event_type", "pipeline_id"} & set(sent)
    untyped = {"subject": {"subject_type": ""}, "actor": {"actor_type": "", "actor_id": "1"}}
    execute(context("hi", config, **untyped))
    assert not {"subject", "actor"} & set(gateway.posted())


PICTURE = "data:image/png;base64,iVBORw0KGgo="


@pytest.mark.parametrize(
    ("attachments", "sent"),
    [
        # LangBot's own picture, and the same picture of the message chain without its content.
        ([{"type": "image", "source": "base64", "content": PICTURE}, {"type": "image"}], [{}]),
        ([{"type": "image", "content": PICTURE}, {"type": "image", "id": "i-1", "path": "/tmp/p.png"}], [{}]),
        ([{"type": "image", "content": PICTURE}, {"type": "image", "content": "", "url": ""}], [{}]),
        # The same bytes twice, once with a name.
        (
            [{"type": "image", "content": PICTURE}, {"type": "image", "content": "iVBORw0KGgo=", "name": "p"}],
            [{"name": "p"}],
        ),
        # Another file does not hide the picture of the contents from agents that read attachments.
        ([{"type": "file", "url": "https://a.example/b.pdf"}], [None, {}]),
        ([{"type": "voice"}], []),
    ],
)
def test_pictures_arrive_once(gateway: FakeGateway, config: Config, attachments: list, sent: list) -> None:
    gateway.tell(COMPLETED)
    contents = [{"type": "image_base64", "image_base64": PICTURE}, {"type": "image_url", "image_url": {"url": ""}}]
    execute(context("", config, input={"text": "see", "contents": contents, "attachments": attachments}))
    found = gateway.posted()["input"]
    assert found["contents"] == contents[:1]
    expected = [{"type": "image", "content": PICTURE, **more} if more is not None else attachments[0] for more in sent]
    assert found["attachments"] == expected


OLDER = {
    "text": "look",
    "contents": [
        {"type": "text", "text": "look"},
        {"type": "image_base64", "image_base64": PICTURE},
        {"type": "file_url", "file_url": "https://a.example/b.pdf", "file_name": "b.pdf"},
    ],
    "attachments": [
        {"type": "image", "source": "base64", "content": PICTURE},
        {"type": "file", "source": "url", "url": "https://a.example/b.pdf", "name": "b.pdf"},
    ],
}
NEWER_ATTACHMENTS = [
    {"ref": "attachment-0", "type": "image", "mime_type": "image/png", "content": PICTURE},
    {"ref": "attachment-1", "type": "file", "url": "https://a.example/b.pdf", "name": "b.pdf"},
]
NEWER_PARTS = [
    {"type": "text", "text": "look"},
    {"type": "image", "ref": "attachment-0"},
    {"type": "file", "ref": "attachment-1"},
]


@pytest.mark.parametrize(
    "document",
    [
        OLDER,
        {"text": "look", "parts": NEWER_PARTS, "attachments": NEWER_ATTACHMENTS},
        {"text": "look", "contents": NEWER_PARTS, "attachments": NEWER_ATTACHMENTS},
        # Files in the parts themselves, and a reference that names nothing.
        {
            "parts": [
                NEWER_PARTS[0],
                {"type": "image", "content": PICTURE},
                {"type": "file", "url": "https://a.example/b.pdf", "name": "b.pdf"},
                {"type": "voice", "ref": "attachment-9"},
            ]
        },
    ],
)
def test_both_shapes_of_media_are_read(document: dict) -> None:
    contents, attachments = media_of(document)
    assert contents == OLDER["contents"]
    content_or_url = [item.get("content") or item["url"] for item in attachments]
    assert content_or_url in ([PICTURE, "https://a.example/b.pdf"], [])
    assert (content_or_url == []) == ("attachments" not in document)
    assert not any("ref" in item for item in [*contents, *attachments])


def test_event_ids_differ_by_message_and_conversation(gateway: FakeGateway, config: Config) -> None:
    gateway.tell(COMPLETED)
    for parts in [{}, {}, {"event_id": "m-2"}, {"conversation_id": "person_2"}]:
        execute(context("hi", config, **parts))
    ids = [headers["idempotency-key"] for headers, _ in gateway.calls("POST /v1/events")]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


def test_resumes_after_the_last_event(gateway: FakeGateway, config: Config) -> None:
    gateway.tell(delta("one "), delta("two "), delta("three"), reply("one two three"), COMPLETED)
    gateway.cuts = [1, 3]
    found = execute(context("hi", config))
    assert texts(found) == ["one ", "one two ", "one two three"]
    assert messages(found) == ["one two three"]
    streams = gateway.calls(f"GET /v1/runs/{RUN}/events")
    assert [headers.get("last-event-id") for headers, _ in streams] == [None, "1", "3"]


def test_lost_responses_are_retried_under_one_key(gateway: FakeGateway, config: Config) -> None:
    gateway.tell(reply("hello"), COMPLETED)
    gateway.faults = [None, (503, {}), (429, {"retry-after": "1"})]
    began = time.monotonic()
    assert messages(execute(context("hi", config))) == ["hello"]
    assert time.monotonic() - began > 1
    keys = {headers["idempotency-key"] for headers, _ in gateway.calls("POST /v1/events")}
    assert (len(gateway.calls("POST /v1/events")), len(keys)) == (4, 1)


def test_refused_streams_are_retried(gateway: FakeGateway, config: Config) -> None:
    gateway.tell(reply("hello"), COMPLETED)
    gateway.stream_faults = [503, 429]
    assert messages(execute(context("hi", config))) == ["hello"]


def test_patience_ends_a_run_as_retryable(gateway: FakeGateway, config: Config) -> None:
    gateway.faults = [None] * 20
    found = execute(context("hi", {**config, "patience": 1}))
    assert failure(found) == "runnel.unreachable"
    assert found[-1].data["retryable"] is True


def test_refusals_reach_the_user(gateway: FakeGateway, config: Config) -> None:
    gateway.faults = [(403, {})]
    found = execute(context("hi", config))
    assert failure(found) == "runnel.some_code"
    assert "some words" in found[-1].data["error"]
    assert "rnl_key" not in found[-1].data["error"]


def test_other_servers_are_no_gateway(gateway: FakeGateway, config: Config) -> None:
    gateway.events = [{"type": "x", "sequence": 1.5}]
    assert failure(execute(context("hi", config))) == "runnel.response_invalid"
    assert len(gateway.calls(f"POST /v1/runs/{RUN}/cancel")) == 1


def test_unwanted_events_say_why(gateway: FakeGateway, config: Config) -> None:
    gateway.accepted = {"event_id": "e", "run_id": None, "reason": "no_agent"}
    found = execute(context("hi", config))
    assert failure(found) == "runnel.no_agent"
    assert "runnel explain" in found[-1].data["error"]


def test_steered_messages_end_without_words(gateway: FakeGateway, config: Config) -> None:
    gateway.accepted = {"event_id": "e", "run_id": RUN, "steered": True, "last_sequence": 3}
    assert [result.type for result in execute(context("hi", config))] == ["run.completed"]
    assert not gateway.calls(f"GET /v1/runs/{RUN}/events")


def test_stopped_runs_are_cancelled(gateway: FakeGateway, config: Config) -> None:
    gateway.tell(delta("so far"))
    gateway.open.clear()
    execute_until(context("hi", config), "message.delta")
    assert len(gateway.calls(f"POST /v1/runs/{RUN}/cancel")) == 1


def test_ended_runs_are_not_cancelled(gateway: FakeGateway, config: Config) -> None:
    gateway.tell(reply("hello"), COMPLETED)
    execute(context("hi", config))
    assert not gateway.calls(f"POST /v1/runs/{RUN}/cancel")


def test_failures_keep_their_code(gateway: FakeGateway, config: Config) -> None:
    data = {"code": "dify.timeout", "message": "too slow", "retryable": True, "details": {"x": 1}}
    gateway.tell(("run.failed", data), usage={"total_tokens": 3})
    last = execute(context("hi", config))[-1]
    assert last.data == {"error": "too slow", "code": "dify.timeout", "retryable": True}
    assert last.usage is not None
    assert last.usage.total_tokens == 3


def test_forgotten_events_give_the_output(gateway: FakeGateway, config: Config) -> None:
    gateway.gone = True
    assert execute(context("hi", config))[-1].data["message"]["content"] == "kept"
    gateway.run = {"run_id": RUN, "status": "failed", "status_reason": "timeout"}
    assert failure(execute(context("hi", config))) == "runnel.ended"


def test_deltas_without_message_end_with_a_final_one(gateway: FakeGateway, config: Config) -> None:
    gateway.tell(delta("a"), delta("b"), COMPLETED)
    found = execute(context("hi", config))
    assert [result.data["chunk"]["is_final"] for result in found[:-1]] == [False, False, True]


def test_surfaces_without_streams_get_one_message(gateway: FakeGateway, config: Config) -> None:
    gateway.tell(delta("a"), delta("b"), COMPLETED)
    found = execute(context("hi", config, delivery={"surface": "platform", "supports_streaming": False}))
    assert [result.type for result in found] == ["run.completed"]
    assert found[-1].data["message"]["content"] == "ab"


def test_tool_calls_pass_and_unknown_events_do_not(gateway: FakeGateway, config: Config) -> None:
    call = {"tool_call_id": "c", "tool_name": "t"}
    gateway.tell(
        ("tool.call.started", {**call, "parameters": {"a": 1}}),
        ("state.updated", {"scope": "conversation", "key": "k", "value": 1}),
        ("x.new", {}),
        ("tool.call.completed", {**call, "result": "text", "extra": 1}),
        COMPLETED,
    )
    found = execute(context("hi", config))
    assert [result.type for result in found] == ["tool.call.started", "tool.call.completed", "run.completed"]
    assert found[1].data["result"] == {"result": "text"}


def test_artifacts_become_files_of_the_message(gateway: FakeGateway, config: Config) -> None:
    gateway.artifacts = {"a-9": (b"png", "image/png"), "a-8": (b"pdf", "application/pdf")}
    gateway.tell(
        ("artifact.created", {"artifact_id": "a-9", "name": "p.png"}),
        ("artifact.created", {"artifact_id": "a-8", "name": "b.pdf"}),
        reply([{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "artifact:a-9"}}]),
        COMPLETED,
    )
    [parts] = messages(execute(context("hi", config)))
    assert [part["type"] for part in parts] == ["text", "image_base64", "file_base64"]
    assert parts[1]["image_base64"] == f"data:image/png;base64,{base64.b64encode(b'png').decode()}"
    assert parts[2]["file_name"] == "b.pdf"


def test_unreadable_artifacts_are_named(gateway: FakeGateway, config: Config) -> None:
    gateway.tell(("artifact.created", {"artifact_id": "none", "name": "b.pdf"}), reply("see"), COMPLETED)
    [parts] = messages(execute(context("hi", config)))
    assert parts[0]["text"] == "see"
    assert "b.pdf could not be read" in parts[1]["text"]


@pytest.mark.parametrize("named", ["../conversations/OTHER/history?x=", "..", "%2e%2e"])
def test_foreign_ids_stay_one_segment(gateway: FakeGateway, config: Config, named: str) -> None:
    gateway.tell(reply([{"type": "file_url", "file_url": f"artifact:{named}", "file_name": "a"}]), COMPLETED)
    [parts] = messages(execute(context("hi", config)))
    assert "The file a could not be read" in parts[0]["text"]
    gateway.accepted = {"event_id": "e", "run_id": named or ".", "status": "created"}
    gateway.faults = []
    execute(context("hi", {**config, "patience": 1}))
    answer = {"text": "", "interaction": {"interaction_id": f"rnl:{named}:room", "action_id": "book", "values": {}}}
    execute(context("", config, input=answer))
    segments = {line.split(" ")[1].count("/") for line, _, _ in gateway.requests if not line.endswith("/v1/events")}
    kinds = {line.split("/")[2] for line, _, _ in gateway.requests}
    assert kinds <= {"events", "runs", "artifacts", "interactions"}
    assert segments <= {4}


def test_large_files_are_uploaded_once(gateway: FakeGateway, config: Config) -> None:
    gateway.tell(COMPLETED)
    content = b"p" * 1_500_000
    encoded = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    given = {
        "text": "see",
        "contents": [{"type": "image_base64", "image_base64": encoded}],
        "attachments": [{"type": "image", "name": "p.png", "content": encoded, "id": "lb-1", "path": "/tmp/x"}],
    }
    execute(context("", config, input=given))
    assert gateway.artifacts == {"a-0": (content, "image/png")}
    sent = gateway.posted()["input"]
    assert sent["contents"] == [{"type": "image_url", "image_url": {"url": "artifact:a-0"}}]
    assert sent["attachments"] == [{"type": "image", "name": "p.png", "artifact_id": "a-0"}]


def test_data_above_the_limit_is_left_out(gateway: FakeGateway, config: Config) -> None:
    gateway.tell(COMPLETED)
    event = {"event_id": "m", "event_type": "tick", "source": "x", "data": {"type": "tick", "x": "y" * 70_000}}
    execute(context("", config, event=event))
    assert gateway.posted()["data"] == {"type": "tick", "omitted": "too large"}


def test_questions_go_to_langbot_and_answers_back(gateway: FakeGateway, config: Config) -> None:
    delivery = {"surface": "platform", "supports_streaming": True, "interactions": {"field_types": ["text"]}}
    requested = {
        "action": "interaction.requested",
        "payload": {
            "interaction_id": "room",
            "title": "Which?",
            "fallback_text": "Which?",
            "actions": [{"id": "book", "label": "Book"}],
            "await": True,
        },
    }
    gateway.tell(("action.requested", requested), COMPLETED)
    gateway.events[0]["metadata"] = {"interaction": {"id": "q-1", "expires_at": 1796054400}}
    found = execute(context("hi", config, delivery=delivery))
    question = found[0].data["payload"]["interaction_id"]
    assert question == "rnl:q-1:room"

    answer = {"text": "", "interaction": {"interaction_id": question, "action_id": "book", "values": {"room": "b"}}}
    execute(context("", config, delivery=delivery, input=answer))
    [(_, body)] = gateway.calls("POST /v1/interactions/q-1/submit")
    assert json.loads(body) == {"interaction_id": "room", "action_id": "book", "values": {"room": "b"}}


def test_performs_open_actions_and_reports_results(gateway: FakeGateway, config: Config) -> None:
    event = {"bot_id": "b-1", "conversation": {"launcher_type": "group", "launcher_id": "7"}}
    made = {
        "a-1": ("member.kick", {"user_id": "u-1"}, {}),
        "a-2": ("message.edit", {"message_id": "m-1"}, {"text": "new"}),
        "a-3": ("message.react", {"message_id": "m-1"}, {"reaction": "x"}),
    }
    for action_id, (name, target, payload) in made.items():
        action = {"action": name, "target": target, "payload": payload, "status": "open", "event": event}
        gateway.actions[action_id] = action
    gateway.actions["a-4"] = {**gateway.actions["a-1"], "status": "claimed"}
    requested = [("action.requested", {"action": name}) for name in ("x", "x", "x", "x")]
    gateway.tell(*requested, COMPLETED)
    for number, ledger in enumerate(gateway.events[:4], 1):
        ledger["metadata"] = {"action": {"id": f"a-{number}", "status": "open"}}
    Host.platform.clear()
    execute(context("hi", config))
    results = {}
    for action_id in made:
        [(_, body)] = gateway.calls(f"POST /v1/actions/{action_id}/result")
        results[action_id] = json.loads(body)
        assert results[action_id]["claim_token"] == f"token of {action_id}"
    assert results["a-1"]["output"] == {"message_id": "p-1"}
    assert [results[one]["error"]["code"] for one in ("a-2", "a-3")] == ["unsupported", "unsupported"]
    assert not gateway.calls("POST /v1/actions/a-4/claim")
    called = {method: (bot, parameters) for bot, method, parameters in Host.platform}
    assert called["kick_member"] == ("b-1", {"group_id": "7", "user_id": "u-1"})
    edited = called["edit_message"][1]
    assert edited["new_content"][0]["text"] == "new"
    assert (edited["chat_type"], edited["chat_id"], edited["message_id"]) == ("group", "7", "m-1")


@pytest.mark.parametrize(
    ("wrong", "key"),
    [({"url": "ftp://x"}, "url"), ({"api-key": " "}, "api-key"), ({"patience": "soon"}, "patience")],
)
def test_wrong_settings_name_their_key(config: Config, wrong: Config, key: str) -> None:
    found = execute(context("hi", {**config, **wrong}))
    assert failure(found) == "runnel.config_invalid"
    assert found[-1].data["error"].startswith(key)


def test_settings_take_langbots_defaults() -> None:
    form = {item["name"]: item["default"] for item in component().spec["config"]}
    made = Settings.of({**form, "api-key": "k"})
    assert (made.url, made.source, made.patience) == ("http://127.0.0.1:8700", "langbot", 60)
