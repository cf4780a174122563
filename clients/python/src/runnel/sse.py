"""Decoder of server-sent events."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterable, AsyncIterator

from .errors import RunnelError

# One event of a run has 1 MiB at most, one of a model 16 MiB.
MAX_EVENT_BYTES = 20 * 1024 * 1024


@dataclasses.dataclass
class ServerSentEvent:
    """`id` is empty for events that are not part of the ledger."""

    event: str
    id: str
    data: str


class EventTooLargeError(RunnelError):
    """An event of the stream has more than `MAX_EVENT_BYTES`."""

    def __init__(self) -> None:
        super().__init__(f"an event of the stream has more than {MAX_EVENT_BYTES} bytes")


async def decode(chunks: AsyncIterable[bytes]) -> AsyncIterator[ServerSentEvent]:
    """The events of a stream. An unfinished event at the end of the stream is dropped: it may be cut."""
    event, event_id, data, size = "message", "", list[str](), 0
    async for line in _lines(chunks):
        if not line:
            if data:
                yield ServerSentEvent(event, event_id, "\n".join(data))
            event, event_id, data, size = "message", "", [], 0
            continue
        size += len(line) + 1
        if size > MAX_EVENT_BYTES:
            raise EventTooLargeError
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "event":
            event = value
        elif name == "id":
            event_id = value


async def _lines(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    # The line iterator of httpx is not used: it also splits at U+2028 inside of a text.
    rest = bytearray()
    async for chunk in chunks:
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            rest += chunk[start:end]
            yield bytes(rest).removesuffix(b"\r")
            rest.clear()
            start = end + 1
        rest += chunk[start:]
        if len(rest) > MAX_EVENT_BYTES:
            raise EventTooLargeError
