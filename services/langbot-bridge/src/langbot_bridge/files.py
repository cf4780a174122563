"""Files of a run, both ways: artifacts of the event into its input, files of messages into artifacts."""

import base64
import binascii
import logging
import typing
from urllib.parse import quote

from langbot_plugin.entities.io.errors import (
    ActionCallError,
    ActionCallTimeoutError,
    ConnectionClosedError,
)

from . import errors, results
from .gateway_client import GatewayClient
from .limits import LIMITS
from .payload import Payload, compact, mapping
from .run import Run

log = logging.getLogger(__name__)

_UPLOAD_SECONDS = 60.0
_FAILURES = (ActionCallError, ActionCallTimeoutError, ConnectionClosedError)


class InputFiles:
    """Reads the artifacts of one event. LangBot's runners accept files only inside the event."""

    def __init__(self, run: Run, client: GatewayClient) -> None:
        self._run, self._client = run, client
        self._read: dict[str, str | None] = {}
        self._left = LIMITS.inlined_bytes
        # One ledger entry for each file that stays a reference, with the reason.
        self.notes: list[Payload] = []

    async def inline(self, given: Payload) -> Payload:
        """The input with its artifacts as base64, each attachment once. Unreadable ones stay references."""
        given = older_shape(given)
        contents = [await self._content(item) for item in given["contents"]]
        attachments, seen = [], set()
        for item in given["attachments"]:
            url = item.get("url") or (f"artifact:{item['id']}" if item.get("source") == "artifact" else None)
            if content := await self._data_url(url):
                if content in seen:
                    continue
                seen.add(content)
                rest = {name: value for name, value in item.items() if name != "url"}
                item = {**rest, "source": "base64", "content": content}
            attachments.append(item)
        return {**given, "contents": contents, "attachments": attachments}

    async def _content(self, item: Payload) -> Payload:
        if content := await self._data_url(mapping(item.get("image_url")).get("url")):
            return {"type": "image_base64", "image_base64": content}
        if content := await self._data_url(item.get("file_url")):
            return {"type": "file_base64", "file_base64": content, "file_name": item.get("file_name")}
        return item

    async def _data_url(self, reference: typing.Any) -> str | None:
        if not isinstance(reference, str) or not reference.startswith("artifact:"):
            return None
        if reference not in self._read:
            self._read[reference] = await self._fetch(reference)
        return self._read[reference]

    async def _fetch(self, reference: str) -> str | None:
        if len(self._read) >= LIMITS.inlined_files:
            self._stays(reference, f"the event has more than {LIMITS.inlined_files} files")
            return None
        artifact_id = reference.removeprefix("artifact:")
        if artifact_id in ("", ".", ".."):
            self._stays(reference, "it names no artifact")
            return None
        path = f"/artifacts/{quote(artifact_id, safe='')}/content"
        try:
            content, kind = await self._client.read(self._run, path, self._left)
        except _FAILURES as error:
            self._stays(reference, str(error))
            return None
        self._left -= len(content)
        return f"data:{kind};base64,{base64.b64encode(content).decode()}"

    def _stays(self, reference: str, reason: str) -> None:
        log.warning("run %s: %s stays a reference: %s", self._run.id, reference, reason)
        self.notes.append(results.note(self._run.id, f"{reference} stays a reference: {reason}"))


def older_shape(given: Payload) -> Payload:
    """The input with the fields of LangBot up to 4.11.4, which the SDK has.

    Later versions have one ordered list of parts (`parts`, or `contents`), whose `ref` names the attachment with the
    file. `ref` itself stays: it is a field of attachments in both shapes.
    """
    attachments = given.get("attachments") or []
    by_ref = {item["ref"]: item for item in attachments if item.get("ref")}
    parts = given.get("parts") or given.get("contents") or []
    contents = [_older_part(part, by_ref.get(part.get("ref") or "", {})) for part in parts]
    return {**given, "contents": contents, "attachments": attachments}


def _older_part(part: Payload, attachment: Payload) -> Payload:
    kind, source = str(part.get("type") or ""), {**attachment, **compact(part)}
    if any(part.get(name) for name in ("text", "image_url", "image_base64", "file_url", "file_base64")):
        return part
    content, url = source.get("content"), source.get("url")
    if not url and source.get("id") and source.get("source") == "artifact":
        url = f"artifact:{source['id']}"
    if not content and not url:
        return part
    is_image = kind.startswith("image") or str(source.get("mime_type") or "").startswith("image/")
    if is_image:
        image = {"type": "image_base64", "image_base64": content}
        return image if content else {"type": "image_url", "image_url": {"url": url}}
    name = compact({"file_name": source.get("file_name") or source.get("name")})
    file = {"type": "file_base64", "file_base64": content, **name}
    return file if content else {"type": "file_url", "file_url": url, **name}


async def uploaded(result: Payload, run: Run, client: GatewayClient) -> list[Payload]:
    """The result with its large files as artifacts. One `artifact.created` for each file precedes it.

    Only messages hold files. A file that cannot be uploaded becomes a text that names it, since as base64 it fits on
    no line.
    """
    data = mapping(result.get("data"))
    message = mapping(data.get("message"))
    parts = message.get("content")
    if not isinstance(parts, list) or not any(map(_large_file, parts)):
        return [result]
    announced: list[Payload] = []
    contents: list[Payload] = []
    for number, part in enumerate(parts):
        if not (encoded := _large_file(part)):
            contents.append(part)
            continue
        name = str(part.get("file_name") or f"{'image' if 'image' in part['type'] else 'file'}-{number + 1}")
        try:
            artifact = await _upload(name, encoded, run, client)
        except _FAILURES as error:
            log.warning("run %s: the file %s was not delivered: %s", run.id, name, error)
            contents.append({"type": "text", "text": f"(The file {name} was not delivered: {error}.)"})
            continue
        announced.append({"run_id": run.id, "type": "artifact.created", "data": artifact})
        contents.append(_reference(part, artifact))
    made = {**data, "message": {**message, "content": contents}}
    if result["type"] == "message.completed":
        ids = [one["data"]["artifact_id"] for one in announced]
        made["file_ids"] = [*(data.get("file_ids") or []), *ids][:100]
    return [*announced, {**result, "data": made}]


def _large_file(part: typing.Any) -> str | None:
    encoded = mapping(part).get("image_base64") or mapping(part).get("file_base64")
    return encoded if isinstance(encoded, str) and len(encoded) > LIMITS.part_bytes else None


async def _upload(name: str, encoded: str, run: Run, client: GatewayClient) -> Payload:
    head, _, rest = encoded.partition(",")
    kind = "application/octet-stream"
    if head.startswith("data:"):
        kind, encoded = head[5:].split(";")[0] or kind, rest
    try:
        content = base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise errors.action_error("create_artifact", "invalid_argument", "it is no base64") from error
    answer = await client.call(
        run,
        "create_artifact",
        "POST",
        "/artifacts",
        _UPLOAD_SECONDS,
        data=content,
        params={"name": name[:255]},
        headers={"content-type": kind},
    )
    fields = ("artifact_id", "name", "mime_type", "size", "sha256")
    return {key: answer.json[key] for key in fields if key in mapping(answer.json)}


def _reference(part: Payload, artifact: Payload) -> Payload:
    url = f"artifact:{artifact['artifact_id']}"
    if part["type"] == "image_base64":
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file_url", "file_url": url, "file_name": artifact.get("name")}
