"""A LangBot run as an event of Runnel. Pure: no I/O."""

import base64
import binascii
import hashlib
import json
import typing

from langbot_plugin.api.entities.builtin.runner import RunnerContext

from .media import Json, media_of, some

# The gateway takes 64 KiB of data as JSON.
_DATA_BYTES = 60_000
# A file that is larger as base64 is uploaded before the event.
FILE_BYTES = 1024 * 1024
_CONVERSATION = ("conversation_id", "thread_id", "launcher_type", "launcher_id")
_QUESTION = "rnl:"


class File(typing.NamedTuple):
    """A file of the event that is uploaded before it."""

    name: str
    mime_type: str
    content: bytes


Put = typing.Callable[[File], typing.Awaitable[str]]


def event_id(ctx: RunnerContext, source: str) -> str:
    """The id of the event: the same for each attempt to post it, another for each message.

    Platforms number messages for themselves, so bot and conversation are part of it.
    """
    conversation = ctx.conversation
    parts = [
        source,
        (conversation.bot_id if conversation else None) or "",
        (conversation.conversation_id if conversation else None) or "",
        ctx.event.event_id,
    ]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return f"langbot-{digest[:40]}"


def envelope(ctx: RunnerContext, source: str, pipeline_id: str | None = None) -> Json:
    """The body of `POST /v1/events`, with unchanged files. Empty members of LangBot are absent."""
    subject = _named(ctx.subject, "subject_type")
    # The runner's context has launcher and bot in the data of its subject only.
    details = subject.get("data") or {}
    conversation = _dump(ctx.conversation)
    for name in ("launcher_type", "launcher_id"):
        conversation[name] = _text(conversation.get(name) or details.get(name))
    bots = (conversation.get("bot_id"), ctx.runtime.metadata.get("bot_id"), details.get("bot_uuid"))
    made: Json = {
        "event_type": ctx.event.event_type,
        "event_id": event_id(ctx, source),
        "source": source,
        "source_event_type": ctx.event.source_event_type,
        "event_time": ctx.event.event_time,
        "bot_id": next((_text(bot) for bot in bots if bot), None),
        "pipeline_id": pipeline_id,
        "conversation": some(conversation, _CONVERSATION),
        "actor": _named(ctx.actor, "actor_type"),
        "subject": subject,
        "input": _input(ctx),
        # LangBot sends on what this runner returns.
        "delivery": {**_dump(ctx.delivery), "automatic_reply": True},
        "data": _data(ctx.event.data),
    }
    return {name: value for name, value in made.items() if value not in (None, "", {})}


async def with_uploads(event: Json, put: Put) -> Json:
    """The event with its large files as artifacts; the same bytes are uploaded once."""
    given = event.get("input")
    if not given:
        return event
    uploaded: dict[str, str] = {}

    async def reference(encoded: typing.Any, name: str, kind: str | None) -> str | None:
        if not isinstance(encoded, str) or len(encoded) <= FILE_BYTES:
            return None
        head, _, rest = encoded.partition(",")
        if head.startswith("data:"):
            kind, encoded = head[5:].split(";")[0] or kind, rest
        digest = hashlib.sha256(encoded.encode()).hexdigest()
        if digest not in uploaded:
            try:
                content = base64.b64decode(encoded, validate=True)
            except binascii.Error:
                return None
            uploaded[digest] = await put(File(name, kind or "application/octet-stream", content))
        return uploaded[digest]

    contents = []
    for part in given.get("contents") or []:
        name = part.get("file_name") or "file"
        if made := await reference(part.get("image_base64"), "image", None):
            part = {"type": "image_url", "image_url": {"url": f"artifact:{made}"}}
        elif made := await reference(part.get("file_base64"), name, None):
            part = {"type": "file_url", "file_url": f"artifact:{made}", "file_name": name}
        contents.append(part)
    attachments = []
    for item in given.get("attachments") or []:
        if made := await reference(item.get("content"), item.get("name") or "file", item.get("mime_type")):
            item = {**some(item, ("type", "name")), "artifact_id": made}
        attachments.append(item)
    return {**event, "input": {**given, "contents": contents, "attachments": attachments}}


def question_id(gateway_id: str, interaction_id: str) -> str | None:
    """The id under which LangBot asks a question of the gateway; `None` if it is too long for LangBot."""
    made = f"{_QUESTION}{gateway_id}:{interaction_id}"
    return made if len(made) <= 255 else None


def answer_of(ctx: RunnerContext) -> tuple[str, Json] | None:
    """The gateway's id of a question and the body of its answer, if this run is the answer to one."""
    submitted = ctx.input.interaction
    if submitted is None or not submitted.interaction_id.startswith(_QUESTION):
        return None
    gateway_id, _, interaction_id = submitted.interaction_id.removeprefix(_QUESTION).partition(":")
    body: Json = {"interaction_id": interaction_id, "values": submitted.values}
    if submitted.action_id:
        body["action_id"] = submitted.action_id
    return gateway_id, body


def _input(ctx: RunnerContext) -> Json:
    contents, attachments = media_of(_dump(ctx.input))
    return {"text": ctx.input.to_text(), "contents": contents, "attachments": attachments}


def _data(data: Json) -> Json:
    # A message's payload repeats its pictures as base64; the event has them in its input.
    bare = _without_bytes(data)
    return bare if len(json.dumps(bare)) <= _DATA_BYTES else {"type": data.get("type"), "omitted": "too large"}


def _without_bytes(value: typing.Any) -> typing.Any:
    if isinstance(value, dict):
        return {name: _without_bytes(inner) for name, inner in value.items() if name != "base64"}
    return [_without_bytes(inner) for inner in value] if isinstance(value, list) else value


def _dump(model: typing.Any) -> Json:
    return model.model_dump(mode="json", exclude_none=True) if model is not None else {}


def _named(model: typing.Any, kind: str) -> Json:
    """An actor or a subject without its empty members; empty without a type."""
    given = _dump(model)
    made = some(given, given)
    return made if kind in made else {}


def _text(value: typing.Any) -> str | None:
    return str(value) if value not in (None, "") else None
