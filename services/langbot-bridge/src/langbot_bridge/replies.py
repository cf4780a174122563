"""Replies of event handlers through the SDK's reply API, as messages of the run. Pure: no I/O."""

import typing

from .payload import Payload, mapping

# Tool that `ctx.reply` and `ctx.reply_stream` of the SDK require.
EVENT_REPLY: Payload = {
    "tool_name": "event_reply",
    "tool_type": "platform",
    "description": "Replies to the conversation that the event came from.",
    "operations": ["call"],
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}
_STREAM = {"update": "message.delta", "finish": "message.completed"}
_FILES = ("File", "Voice")


class Reply(typing.NamedTuple):
    """A result of the run, or nothing for an aborted stream."""

    kind: str
    content: str | list[Payload]


def reply_of(action: str, payload: Payload) -> Reply | None:
    """The reply that a call of the SDK is; `None` when it is none."""
    if action == "call_tool" and payload.get("tool_name") == "event_reply":
        return Reply("message.completed", str(mapping(payload.get("parameters")).get("text") or ""))
    if action == "reply_stream":
        return Reply(_STREAM.get(payload["operation"], ""), payload["text"])
    if action == "call_platform_api" and payload.get("context_tool") == "event_reply":
        if payload.get("file_ids"):
            return None
        return Reply("message.completed", content_of(mapping(payload.get("params")).get("message")))
    if action == "reply_message":
        return Reply("message.completed", content_of(payload.get("message_chain")))
    return None


def content_of(chain: typing.Any) -> str | list[Payload]:
    """The content of a message for a LangBot message chain: a text if all of its parts are text."""
    parts = [part for item in chain or [] if isinstance(item, dict) and (part := _part(item))]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(item: Payload) -> Payload | None:
    kind = item.get("type")
    if kind == "Plain":
        return {"type": "text", "text": item.get("text") or ""}
    if kind == "At":
        return {"type": "text", "text": f"@{item.get('display') or item.get('target')}"}
    if kind == "AtAll":
        return {"type": "text", "text": "@all"}
    if kind == "Image":
        if item.get("base64"):
            return {"type": "image_base64", "image_base64": item["base64"]}
        return {"type": "image_url", "image_url": {"url": item["url"]}} if item.get("url") else None
    if kind in _FILES:
        name = item.get("name") or str(kind).lower()
        if item.get("base64"):
            return {"type": "file_base64", "file_base64": item["base64"], "file_name": name}
        return {"type": "file_url", "file_url": item["url"], "file_name": name} if item.get("url") else None
    return None
