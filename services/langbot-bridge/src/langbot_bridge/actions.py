"""Platform calls of the SDK as platform actions of the gateway. Pure: no I/O."""

import typing

from .payload import Payload, mapping

UNFINISHED = ("awaiting_approval", "open", "claimed")
# One long poll of the host API, in seconds.
WAIT_SECONDS = 25


class ActionRequest(typing.NamedTuple):
    """An action of the gateway's catalogue, and the chat that the SDK's call names, if it names one."""

    action: str
    target: Payload
    payload: Payload
    chat_id: str | None


def action_of(name: str, data: Payload) -> ActionRequest | None:
    """The action for a call of the SDK; `None` when the catalogue has none."""
    if name != "call_platform_api" or data.get("context_tool"):
        return None
    params = mapping(data.get("params"))
    method = str(data.get("action"))
    chat = params.get("chat_id", params.get("group_id", params.get("target_id")))
    chat_id = None if chat is None else str(chat)

    def named(*names: str) -> Payload:
        return {one: params[one] for one in names if params.get(one) is not None}

    text = _text(params.get("new_content") or params.get("message"))
    made: dict[str, tuple[str, Payload, Payload]] = {
        "send_message": ("message.send", {}, {"text": text}),
        "edit_message": ("message.edit", named("message_id"), {"text": text}),
        "delete_message": ("message.recall", named("message_id"), {}),
        "set_group_name": ("group.rename", {}, named("name")),
        "leave_group": ("group.leave", {}, {}),
        "mute_member": ("member.mute", named("user_id"), {"duration_seconds": params.get("duration") or 0}),
        "unmute_member": ("member.unmute", named("user_id"), {}),
        "kick_member": ("member.kick", named("user_id"), {}),
        "approve_friend_request": (
            "friend_request.answer",
            named("request_id"),
            {"approve": params.get("approve", True), **named("remark")},
        ),
        "approve_group_invite": (
            "group_invite.answer",
            named("request_id"),
            {"approve": params.get("approve", True)},
        ),
    }
    found = made.get(method)
    return None if found is None else ActionRequest(*found, chat_id)


def _text(chain: typing.Any) -> str:
    """The text of a message chain."""
    parts = [item.get("text") for item in chain or [] if isinstance(item, dict) and item.get("type") == "Plain"]
    return "".join(str(part) for part in parts if part)
