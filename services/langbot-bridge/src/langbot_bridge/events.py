"""Events of the gateway as the SDK's platform events. Pure: no I/O."""

import copy
import typing

from langbot_plugin.api.entities.builtin.platform import events as platform_events
from langbot_plugin.api.entities.builtin.platform import message as platform_message

from .payload import Payload, mapping

MESSAGE = "message.received"


def payload_of(context: Payload) -> Payload:
    """The data of the SDK's platform event: what the client posted, else made of the event's own parts."""
    event = context["event"]
    data = copy.deepcopy(mapping(event.get("data")))
    kind = event["event_type"]
    if data.get("type"):
        return data
    if kind == MESSAGE:
        return {**_message(context), **data, "type": kind}
    return {**data, "type": kind, "timestamp": float(event.get("event_time") or 0)}


def platform_event(context: Payload) -> platform_events.EBAEvent:
    """The SDK's typed event. Raises `ValueError` for a type that the SDK does not know."""
    return platform_events.parse_eba_event(payload_of(context))


def with_payload(context: Payload) -> Payload:
    """The context with the data that `ctx.platform_event` of the SDK reads."""
    return {**context, "event": {**context["event"], "data": payload_of(context)}}


def _message(context: Payload) -> Payload:
    event, actor = context["event"], mapping(context.get("actor"))
    conversation = mapping(context.get("conversation"))
    is_group = conversation.get("launcher_type") == "group"
    sender = str(actor.get("actor_id") or conversation.get("sender_id") or "")
    chat = str(conversation.get("launcher_id") or conversation.get("conversation_id") or sender)
    made: Payload = {
        "message_id": event["event_id"],
        "message_chain": chain_of(context["input"]),
        "sender": {"id": sender, "nickname": str(actor.get("actor_name") or "")},
        "chat_type": "group" if is_group else "private",
        "chat_id": chat,
        "timestamp": float(event.get("event_time") or 0),
        "bot_uuid": str(conversation.get("bot_id") or ""),
        "adapter_name": str(event.get("source") or ""),
    }
    if is_group:
        made["group"] = {"id": chat}
    return made


def chain_of(given: Payload) -> list[Payload]:
    """The message chain of an event's input, as JSON."""
    made = [part for item in given.get("contents") or [] if (part := _component(item))]
    if not made and given.get("text"):
        made.append({"type": "Plain", "text": given["text"]})
    return made


def _component(item: Payload) -> Payload | None:
    kind = item.get("type")
    if kind == "text":
        return {"type": "Plain", "text": item.get("text") or ""}
    if kind == "image_base64":
        return {"type": "Image", "base64": item.get("image_base64")}
    if kind == "image_url":
        return {"type": "Image", "url": mapping(item.get("image_url")).get("url")}
    name = item.get("file_name") or "file"
    if kind == "file_base64":
        return {"type": "File", "name": name, "base64": item.get("file_base64")}
    if kind == "file_url":
        return {"type": "File", "name": name, "url": item.get("file_url") or ""}
    return None


def chain(event: platform_events.MessageReceivedEvent) -> platform_message.MessageChain:
    """A copy of a message's chain, for an event that may change it."""
    return event.message_chain.model_copy(deep=True)


def text_of(made: typing.Iterable[platform_message.MessageComponent]) -> str:
    """The plain text of a chain."""
    return "".join(part.text for part in made if isinstance(part, platform_message.Plain))
