"""Request signatures after the Standard Webhooks specification."""

import base64
import binascii
import collections
import hashlib
import hmac
import re
import typing

TOLERANCE_SECONDS = 300
_PREFIX = "whsec_"
_KEY_BYTES = range(24, 65)


class InvalidSecretError(ValueError):
    """The text is no signing secret. The message never quotes it."""


class SignatureError(Exception):
    """The request is not from the gateway."""


class Keys:
    """One or more secrets, separated by white space, so that a secret can be rotated."""

    def __init__(self, text: str) -> None:
        self._keys = [_key(part) for part in text.split()]
        if not self._keys:
            raise InvalidSecretError("there is no signing secret: set that of the runner endpoint")

    def fresh(self, headers: typing.Mapping[str, str], now: float) -> int:
        """The timestamp, in epoch seconds, once id and timestamp are well formed and recent.

        Needs no body: requests with old or broken headers are refused before their body is read.
        """
        message_id, when = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
        # A dot in the id could pass for the separator after the id.
        if not message_id or "." in message_id:
            raise SignatureError("header webhook-id is missing, empty or holds a dot")
        if not re.fullmatch(r"[0-9]{1,12}", when):
            raise SignatureError("header webhook-timestamp is not a number of seconds")
        if abs(int(when) - now) > TOLERANCE_SECONDS:
            raise SignatureError("header webhook-timestamp is more than five minutes away")
        return int(when)

    def verify(self, headers: typing.Mapping[str, str], body: bytes) -> None:
        """Raises unless one signature belongs to this id, timestamp and body. Compares in constant time."""
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        expected = [hmac.digest(key, signed, hashlib.sha256) for key in self._keys]
        for part in headers.get("webhook-signature", "").split(" "):
            version, _, given = part.partition(",")
            if version != "v1":
                continue
            try:
                tag = base64.b64decode(given, validate=True)
            except binascii.Error:
                continue
            if any(hmac.compare_digest(tag, one) for one in expected):
                return
        raise SignatureError("no signature in header webhook-signature belongs to this request")

    def sign(self, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
        """The three headers of a request that is signed with the first key."""
        signed = f"{message_id}.{timestamp}.".encode() + body
        tag = base64.b64encode(hmac.digest(self._keys[0], signed, hashlib.sha256)).decode()
        return {
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": f"v1,{tag}",
        }


def _key(text: str) -> bytes:
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(_PREFIX) or len(key) not in _KEY_BYTES:
        raise InvalidSecretError("a signing secret is `whsec_` and the base64 of 24 to 64 bytes")
    return key


class SeenIds:
    """Ids of the last ten minutes. A full memory evicts the oldest, and refuses all requests of their age."""

    def __init__(self, capacity: int = 65_536) -> None:
        self._capacity = capacity
        self._ids: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._forgotten_until = -1

    def insert(self, message_id: str, timestamp: int, now: float) -> bool:
        """Records an id; false if it was seen. Call it after the signature was verified."""
        while self._ids:
            oldest, signed_at = next(iter(self._ids.items()))
            # Twice the tolerance: clocks may be ahead, so ids do not come in the order of their timestamps.
            if signed_at >= now - 2 * TOLERANCE_SECONDS:
                break
            del self._ids[oldest]
        # A fingerprint bounds the memory of an id.
        fingerprint = hashlib.sha256(message_id.encode()).hexdigest()[:32]
        if timestamp <= self._forgotten_until or fingerprint in self._ids:
            return False
        self._ids[fingerprint] = timestamp
        if len(self._ids) > self._capacity:
            _, forgotten = self._ids.popitem(last=False)
            self._forgotten_until = max(self._forgotten_until, forgotten)
        return True
