"""Platform calls of the SDK as platform actions of the gateway."""

import asyncio
import types
import typing

import pytest
from langbot_plugin.entities.io.errors import ActionCallError

from langbot_bridge.actions import action_of
from langbot_bridge.errors import code_of
from langbot_bridge.host_api import HostApi

CHAIN = [{"type": "Plain", "text": "new "}, {"type": "At", "target": 1}, {"type": "Plain", "text": "text"}]


def call(method: str, **params: typing.Any) -> dict[str, typing.Any]:
    return {"run_id": "r", "bot_uuid": "b", "action": method, "params": params}


@pytest.mark.parametrize(
    ("data", "action", "target", "payload", "chat"),
    [
        (
            call("edit_message", chat_type="group", chat_id=7, message_id=1, new_content=CHAIN),
            "message.edit",
            {"message_id": 1},
            {"text": "new text"},
            "7",
        ),
        (call("delete_message", chat_id="7", message_id="m"), "message.recall", {"message_id": "m"}, {}, "7"),
        (call("mute_member", group_id=7, user_id=2), "member.mute", {"user_id": 2}, {"duration_seconds": 0}, "7"),
        (
            call("approve_friend_request", request_id="q", approve=False),
            "friend_request.answer",
            {"request_id": "q"},
            {"approve": False},
            None,
        ),
    ],
)
def test_maps_platform_calls(
    data: dict[str, typing.Any],
    action: str,
    target: dict[str, typing.Any],
    payload: dict[str, typing.Any],
    chat: str | None,
) -> None:
    assert action_of("call_platform_api", data) == (action, target, payload, chat)


def test_leaves_other_calls_out() -> None:
    assert action_of("call_platform_api", call("get_group_info", group_id=7)) is None
    assert action_of("call_platform_api", {**call("send_message"), "context_tool": "event_reply"}) is None
    assert action_of("call_tool", call("edit_message")) is None


class Host(HostApi):
    """The host API with these answers, one after the other."""

    def __init__(self, granted: str, *answers: dict[str, typing.Any]) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []
        self.answers = list(answers)
        self.bodies: list[typing.Any] = []
        context = {
            "resources": {"platform_capabilities": {granted: {"approval": "auto"}}},
            "conversation": {"launcher_id": "7"},
        }
        self.runs["r"] = types.SimpleNamespace(context=context, is_over=False, replies=False)  # type: ignore[assignment]
        self.client.call = self._answered  # type: ignore[method-assign]

    async def _answered(
        self, _run: object, _name: str, method: str, path: str, _limit: float | None, **request: typing.Any
    ) -> typing.Any:
        self.calls.append((method, path))
        self.bodies.append(request.get("json"))
        return types.SimpleNamespace(json=self.answers.pop(0))

    def asked(self, data: dict[str, typing.Any]) -> typing.Any:
        return asyncio.run(self.call_action("call_platform_api", data))


RECALL = call("delete_message", chat_id="7", message_id="m")


def test_waits_for_the_outcome_of_granted_actions() -> None:
    done = {"id": "a-1", "status": "done", "output": {"ok": True}}
    host = Host("message.recall", {"id": "a-1", "status": "open"}, {"id": "a-1", "status": "claimed"}, done)
    assert host.asked(RECALL) == {"result": {"ok": True}}
    assert host.calls == [("POST", "/platform/actions"), *[("GET", "/platform/actions/a-1")] * 2]
    assert host.bodies[0]["action"] == "message.recall"
    assert len(host.bodies[0]["idempotency_key"]) == 32


@pytest.mark.parametrize(
    ("granted", "data", "answer", "code"),
    [
        ("message.edit", RECALL, {}, "not_found"),
        ("message.recall", {**RECALL, "params": {"chat_id": "8", "message_id": "m"}}, {}, "invalid_argument"),
        ("message.recall", RECALL, {"id": "a", "status": "declined"}, "declined"),
        (
            "message.recall",
            RECALL,
            {"id": "a", "status": "failed", "error": {"code": "unsupported", "message": "no"}},
            "unsupported",
        ),
    ],
)
def test_refused_actions_raise_the_sdks_error(
    granted: str, data: dict[str, typing.Any], answer: dict[str, typing.Any], code: str
) -> None:
    with pytest.raises(ActionCallError) as raised:
        Host(granted, answer).asked(data)
    assert code_of(raised.value) == code
