"""Signatures after Standard Webhooks (https://www.standardwebhooks.com), in both directions."""

from __future__ import annotations

import base64
import binascii
import collections
import hashlib
import hmac
import re
import threading
import time
from collections.abc import Mapping

# Largest difference of a signature's timestamp to the clock.
TOLERANCE_SECONDS = 300
_PREFIX = "whsec_"
_KEY_BYTES = range(24, 65)


class SignatureError(Exception):
    """Request without a valid signature of this secret and time. Answer 401."""


class Webhook:
    """Signer and verifier of requests, with one secret, or with several (separated by white space) during a rotation.

    A secret is `whsec_` and the base64 of 24 to 64 bytes; any other raises `ValueError`.

    >>> hook = Webhook("whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")
    >>> headers = hook.sign("list_1", b"", timestamp=1795291200)
    >>> hook.verify(headers, b"", now=1795291200)
    1795291200
    """

    def __init__(self, secret: str) -> None:
        self._keys = [_key(part) for part in secret.split()]
        if not self._keys:
            raise ValueError("the signing secret is empty: use the secret of the runner endpoint, whsec_…")

    def verify(self, headers: Mapping[str, str], body: bytes | str, now: float | None = None) -> int:
        """Returns the timestamp of a valid signature in epoch seconds, or raises `SignatureError`.

        `headers` may have names in any case. `body` is the body as it arrived; a GET has the body `b""`. The
        caller refuses a `webhook-id` that it has seen: see `SeenIds`.
        """
        found = {name.lower(): value for name, value in headers.items()}
        message_id, when = found.get("webhook-id", ""), found.get("webhook-timestamp", "")
        # A dot in the id could be taken for the separator after it.
        if not message_id or "." in message_id:
            raise SignatureError("header webhook-id is missing, empty or has a dot")
        if not re.fullmatch(r"[0-9]{1,12}", when):
            raise SignatureError("header webhook-timestamp is not a number of seconds")
        if abs(int(when) - (time.time() if now is None else now)) > TOLERANCE_SECONDS:
            raise SignatureError("header webhook-timestamp is more than five minutes away")
        expected = [_tag(key, message_id, when, body) for key in self._keys]
        for part in found.get("webhook-signature", "").split(" "):
            version, _, encoded = part.partition(",")
            given = encoded.encode()
            # Compares in constant time: the duration must not reveal a part of the signature.
            if version == "v1" and any(hmac.compare_digest(given, one) for one in expected):
                return int(when)
        raise SignatureError("no signature in header webhook-signature matches this request")

    def sign(self, message_id: str, body: bytes | str, timestamp: int | None = None) -> dict[str, str]:
        """Headers of a request, signed with the first secret. `timestamp` is in epoch seconds, by default now."""
        when = str(int(time.time()) if timestamp is None else timestamp)
        tag = _tag(self._keys[0], message_id, when, body).decode()
        return {"webhook-id": message_id, "webhook-timestamp": when, "webhook-signature": f"v1,{tag}"}


def _key(text: str) -> bytes:
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(_PREFIX) or len(key) not in _KEY_BYTES:
        # The message never quotes the secret.
        raise ValueError("a signing secret is whsec_ and the base64 of 24 to 64 bytes")
    return key


def _tag(key: bytes, message_id: str, when: str, body: bytes | str) -> bytes:
    data = body.encode() if isinstance(body, str) else body
    signed = f"{message_id}.{when}.".encode() + data
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256))


class SeenIds:
    """Memory of the `webhook-id`s of the last ten minutes, bounded to `capacity` ids.

    A full memory evicts the oldest ids. Requests as old as an evicted id count as seen: the gateway's own requests
    are seconds old.
    """

    def __init__(self, capacity: int = 65_536) -> None:
        self._capacity = capacity
        self._ids: collections.OrderedDict[bytes, int] = collections.OrderedDict()
        self._evicted_until = -1
        self._lock = threading.Lock()

    def add(self, message_id: str, timestamp: int, now: float | None = None) -> bool:
        """Records an id; false if it was seen. Call it after `verify`: unsigned requests must not fill the memory."""
        now = time.time() if now is None else now
        # A digest bounds the memory of an id.
        digest = hashlib.sha256(message_id.encode()).digest()[:16]
        with self._lock:
            while self._ids:
                oldest = next(iter(self._ids.values()))
                # Twice the tolerance: a clock ahead of ours may sign five minutes in the future.
                if oldest >= now - 2 * TOLERANCE_SECONDS:
                    break
                self._ids.popitem(last=False)
            # An evicted id cannot be recognized, so requests as old as it count as seen.
            if timestamp <= self._evicted_until or digest in self._ids:
                return False
            self._ids[digest] = timestamp
            if len(self._ids) > self._capacity:
                _, evicted = self._ids.popitem(last=False)
                self._evicted_until = max(self._evicted_until, evicted)
            return True
