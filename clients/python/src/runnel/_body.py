"""Bodies of responses, decoded in bounded pieces."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator

import httpx

from .errors import RunnelError

_PIECE_BYTES = 65_536
# zlib detects the header: gzip, or the zlib format of `deflate`.
_ANY_HEADER = 32 + zlib.MAX_WBITS


async def decoded(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The pieces of a body. httpx decodes what arrives at once, which can be a thousand times as large."""
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if response.is_stream_consumed:
        # A transport of tests answers with its complete content.
        yield response.content
    elif coding == "identity":
        async for piece in response.aiter_raw():
            yield piece
    elif coding in ("gzip", "x-gzip", "deflate"):
        inflate = zlib.decompressobj(_ANY_HEADER)
        try:
            async for piece in response.aiter_raw():
                while out := inflate.decompress(piece, _PIECE_BYTES):
                    yield out
                    piece = inflate.unconsumed_tail
        except zlib.error as error:
            raise RunnelError(f"the body is no {coding}: {error}") from None
        if not inflate.eof:
            raise RunnelError("the body is cut: its compressed data has no end")
    else:
        raise RunnelError(f"the body has the encoding {coding[:40]!r}: let the proxy send it as identity or gzip")
