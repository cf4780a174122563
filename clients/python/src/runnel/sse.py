"""Decoder of server-sent events."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterable, AsyncIterator

# One event of a run has 1 MiB at most, one of a model 16 MiB.
MAX_LINE_BYTES = 20 * 1024 * 1024


@dataclasses.dataclass
class ServerSentEvent:
    """`id` is empty for events that are not part of the ledger."""

    event: str
    id: str
    data: str


class LineTooLongError(ValueError):
    """A line of the stream has more than `MAX_LINE_BYTES`."""


async def decode(chunks: AsyncIterable[bytes]) -> AsyncIterator[ServerSentEvent]:
    """The events of a stream. An unfinished event at the end of the stream is dropped: it may be cut."""
    event, event_id, data = "message", "", list[str]()
    async for line in _lines(chunks):
        if not line:
            if data:
                yield ServerSentEvent(event, event_id, "\n".join(data))
            event, event_id, data = "message", "", []
            continue
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
        if len(rest) > MAX_LINE_BYTES:
            raise LineTooLongError(f"a line of the stream has more than {MAX_LINE_BYTES} bytes")
