"""Handlers of events: runners with `usages: [event]`, and EventListener components."""

from bridge_process import Bridge, last_content, streamed, types
from fake_gateway import FakeGateway

HANDLERS, EARS = "plugin:tester/probe/handlers", "plugin:tester/probe/default-events"
JOINED = {
    "event_id": "e-9",
    "event_type": "group.member_joined",
    "source": "qq",
    "data": {"group": {"id": 7, "name": "Tea"}, "member": {"id": 1, "nickname": "Bob"}},
}


def messages(found: list[dict]) -> list:
    return [result["data"]["message"]["content"] for result in found if result["type"] == "message.completed"]


def test_replies_are_messages_of_the_run(probe: Bridge, gateway: FakeGateway) -> None:
    found = probe.run("good day", gateway, HANDLERS).all()
    assert messages(found) == ["received good day from Ada in private", "one two"]
    assert streamed(found) == "one two"
    assert types(found)[-1] == "run.completed"
    assert types(found).count("tool.call.completed") == 2


def test_posted_platform_events_are_typed(probe: Bridge, gateway: FakeGateway) -> None:
    found = probe.run("", gateway, HANDLERS, event=JOINED).all()
    assert messages(found) == [
        [{"type": "text", "text": "welcome Bob"}, {"type": "image_url", "image_url": {"url": "https://x.test/a"}}]
    ]
    assert "processor.log" in types(found)


def test_group_messages_name_their_group(probe: Bridge, gateway: FakeGateway) -> None:
    conversation = {"conversation_id": "c-1", "launcher_type": "group", "launcher_id": "7"}
    found = probe.run("good day", gateway, HANDLERS, conversation=conversation).all()
    assert messages(found)[0] == "received good day from Ada in group"


def test_unknown_events_fail_with_their_type(probe: Bridge, gateway: FakeGateway) -> None:
    event = {**JOINED, "event_type": "tick.hourly", "data": {}}
    last = probe.run("", gateway, HANDLERS, event=event).all()[-1]
    assert last["type"] == "run.failed"
    assert "tick.hourly" in last["data"]["error"]


def test_listener_handles_a_message_as_in_a_pipeline(probe: Bridge, gateway: FakeGateway) -> None:
    found = probe.run("good day", gateway, EARS, variables={"city": "Rome"}).all()
    models = "['small', 'ranker', 'embedder']"
    assert messages(found) == [f"good day: fine ['city', 'mood'] bot-1 {models}", "and that is all"]
    assert "GET /models" in gateway.paths()


def test_listener_handles_platform_events(probe: Bridge, gateway: FakeGateway) -> None:
    assert last_content(probe.run("", gateway, EARS, event=JOINED).all()) == "Bob joined Tea"


def test_unhandled_events_leave_a_note(probe: Bridge, gateway: FakeGateway) -> None:
    event = {**JOINED, "event_type": "friend.added", "data": {}}
    found = probe.run("", gateway, EARS, event=event).all()
    assert types(found) == ["processor.log", "run.completed"]
