"""Files of a LangBot message, in both shapes of LangBot. Pure: no I/O.

Up to 4.11.4 a content part holds its file (`image_base64`, `file_url`, …). Later versions have one ordered list of
parts (`parts`, or `contents`), whose `ref` names the attachment that holds the file.
"""

import hashlib
import logging
import typing

Json = dict[str, typing.Any]

log = logging.getLogger(__name__)

_CONTENT = ("type", "text", "image_url", "image_base64", "file_url", "file_base64", "file_name")
_ATTACHMENT = ("type", "mime_type", "size", "name", "url", "content")


def media_of(given: Json) -> tuple[list[Json], list[Json]]:
    """The content parts and the attachments of an input, each file once in each list.

    Parts without a file that the gateway can read are omitted and logged.
    """
    attachments = given.get("attachments") or []
    by_ref = {item["ref"]: item for item in attachments if item.get("ref")}
    parts = [_part(part, by_ref) for part in given.get("parts") or given.get("contents") or []]
    contents = [part for part in parts if part is not None]
    found: dict[str, Json] = {}
    for item in [some(item, _ATTACHMENT) for item in attachments]:
        if (key := _key(item.get("content"), item.get("url"))) is None:
            log.warning("attachment of type %s left out: it has no content and no URL", item.get("type"))
            continue
        # LangBot lists a picture of a message twice: the second time it may have a name.
        found[key] = {**item, **found.get(key, {})}
    if found:
        # If an input has attachments, agents that upload files read only those, so all files are listed there.
        for part in contents:
            item = _attachment(part)
            key = _key(item.get("content"), item.get("url"))
            if key is not None and key not in found:
                found[key] = item
    return contents, list(found.values())


def some(value: Json, names: typing.Iterable[str]) -> Json:
    """These members, without those that are null or empty."""
    return {name: value[name] for name in names if value.get(name) not in (None, "")}


def _part(part: Json, by_ref: dict[str, Json]) -> Json | None:
    kind = str(part.get("type") or "")
    if isinstance(part.get("image_url"), str):
        part = {**part, "image_url": {"url": part["image_url"]}}
    made = some(part, _CONTENT)
    if (made.get("image_url") or {"url": "x"}).get("url") in (None, ""):
        del made["image_url"]
    if len(made.keys() - {"type", "file_name"}) > 0:
        return made
    if kind == "text":
        return None
    source = {**by_ref.get(part.get("ref") or "", {}), **some(part, part)}
    found = _file(kind, source)
    if found is None:
        log.warning("content part of type %s left out: it has no content and no URL", kind)
    return found


def _file(kind: str, source: Json) -> Json | None:
    """The content part of an attachment."""
    is_image = kind.startswith("image") or str(source.get("mime_type") or "").startswith("image/")
    content, url = source.get("content"), source.get("url")
    if is_image and content:
        return {"type": "image_base64", "image_base64": content}
    if is_image and url:
        return {"type": "image_url", "image_url": {"url": url}}
    name = some({"file_name": source.get("file_name") or source.get("name")}, ["file_name"])
    if content:
        return {"type": "file_base64", "file_base64": content, **name}
    return {"type": "file_url", "file_url": url, **name} if url else None


def _attachment(part: Json) -> Json:
    """The attachment of a content part."""
    is_image = "image_base64" in part or "image_url" in part
    made: Json = {
        "type": "image" if is_image else "file",
        "name": part.get("file_name"),
        "content": part.get("image_base64") or part.get("file_base64"),
        "url": (part.get("image_url") or {}).get("url") or part.get("file_url"),
    }
    return some(made, made)


def _key(content: typing.Any, url: typing.Any) -> str | None:
    """Identity of a file in both lists: a digest of its bytes, else its URL."""
    if isinstance(content, str) and content:
        # A data URL and its bare base64 are the same bytes.
        bare = content.partition(",")[2] if content.startswith("data:") else content
        return hashlib.sha256(bare.encode()).hexdigest()
    return url if isinstance(url, str) and url else None
