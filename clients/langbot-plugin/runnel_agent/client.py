"""Calls of the gateway, with retries: an event is posted once, and a stream is read to its end."""

import asyncio
import contextlib
import json
import logging
import typing
import urllib.parse
from collections.abc import AsyncGenerator

import httpx

from .envelope import File
from .media import Json
from .settings import Settings

log = logging.getLogger(__name__)

TERMINAL = ("run.completed", "run.failed")
# The gateway sends a comment after 15 s of silence.
_SILENCE_SECONDS = 45.0
_CALL_SECONDS = 30.0
_UPLOAD_SECONDS = 300.0
_CANCEL_SECONDS = 5.0
_PAUSE, _LONGEST_PAUSE = 0.25, 8.0
# One event of a run has 1 MiB at most.
_LINE_BYTES = 4 * 1024 * 1024
_FILE_BYTES = 10 * 1024 * 1024
_RETRIED = (408, 425, 429, 500, 502, 503, 504)


class GatewayError(Exception):
    """A call without a usable response. The message is for the user."""

    def __init__(self, code: str, message: str, retryable: bool = False) -> None:
        super().__init__(message)
        self.code, self.retryable = code, retryable


class EventsGoneError(Exception):
    """The gateway no longer keeps the events of the run."""


def segment(name: str) -> str:
    """One segment of a path. Raises `GatewayError` for what would lead to another route."""
    if name in ("", ".", ".."):
        raise GatewayError("runnel.invalid_id", f"`{name}` is no id of the gateway")
    return urllib.parse.quote(name, safe="")


class Client:
    """A session with one gateway. Follows no redirect, so the key reaches only that gateway."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._http = httpx.AsyncClient(
            base_url=settings.url,
            headers={"authorization": f"Bearer {settings.api_key}"},
            timeout=httpx.Timeout(_CALL_SECONDS, connect=10.0),
            trust_env=False,
        )

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self._http.aclose()

    async def post(self, path: str, body: Json, key: str) -> Json:
        """Posts until the gateway has answered. The key makes it one event, however often it arrives."""
        answer = await self._patiently("POST", path, json=body, headers={"idempotency-key": key})
        found = answer.json()
        return found if isinstance(found, dict) else {}

    async def upload(self, file: File) -> str:
        """Uploads a file and gives its artifact's id."""
        answer = await self._patiently(
            "POST",
            "/v1/artifacts",
            content=file.content,
            params={"name": file.name[:255]},
            headers={"content-type": file.mime_type},
            timeout=_UPLOAD_SECONDS,
        )
        return str(answer.json()["artifact_id"])

    async def download(self, artifact_id: str) -> tuple[bytes, str]:
        """The bytes of an artifact, at most 10 MiB, and their type."""
        path = f"/v1/artifacts/{segment(artifact_id)}/content"
        content = bytearray()
        async with self._http.stream("GET", path) as answer:
            if answer.status_code != 200:
                raise GatewayError("runnel.artifact", f"HTTP {answer.status_code}")
            async for piece in answer.aiter_bytes():
                content += piece
                if len(content) > _FILE_BYTES:
                    raise GatewayError("runnel.artifact", f"it has more than {_FILE_BYTES} bytes")
        return bytes(content), answer.headers.get("content-type", "application/octet-stream").split(";")[0]

    async def get(self, path: str) -> Json:
        """Reads an object."""
        answer = await self._patiently("GET", path)
        found = answer.json()
        return found if isinstance(found, dict) else {}

    async def act(self, path: str, body: Json) -> Json:
        """Posts an act that the gateway accepts once. Repeated after a lost response."""
        answer = await self._patiently("POST", path, json=body)
        found = answer.json()
        return found if isinstance(found, dict) else {}

    async def run(self, run_id: str) -> Json:
        """Current state of the run, without its events."""
        answer = await self._patiently("GET", f"/v1/runs/{segment(run_id)}")
        found = answer.json()
        return found if isinstance(found, dict) else {}

    async def cancel(self, run_id: str) -> None:
        """Asks the run to end. An error is logged: the run ends by its deadline then."""
        try:
            await self._http.post(f"/v1/runs/{segment(run_id)}/cancel", json={}, timeout=_CANCEL_SECONDS)
        except httpx.HTTPError as error:
            log.warning("run %s: the cancel did not arrive: %s", run_id, error)

    async def follow(self, run_id: str) -> AsyncGenerator[Json, None]:
        """The events of a run, each once, up to its end. A broken stream is resumed after the last event."""
        last, pauses = 0, _Pauses(self._settings.patience)
        while True:
            try:
                async with contextlib.aclosing(self._events(run_id, last)) as events:
                    async for event in events:
                        if event["sequence"] <= last:
                            continue
                        last = event["sequence"]
                        pauses.reset()
                        yield event
                        if event.get("type") in TERMINAL:
                            return
                reason = "the stream ended before the run"
            except httpx.TransportError as error:
                reason = f"{type(error).__name__}: {error}"
            except _RetryLater as error:
                reason = str(error)
                pauses.at_least(error.seconds)
            log.info("run %s: resuming after event %s: %s", run_id, last, reason)
            await pauses.wait(reason)

    async def _events(self, run_id: str, last: int) -> AsyncGenerator[Json, None]:
        headers = {"accept": "text/event-stream"}
        if last:
            headers["last-event-id"] = str(last)
        limit = httpx.Timeout(_CALL_SECONDS, read=_SILENCE_SECONDS)
        async with self._http.stream(
            "GET", f"/v1/runs/{segment(run_id)}/events", headers=headers, timeout=limit
        ) as answer:
            if answer.status_code in (204, 410):
                raise EventsGoneError
            if answer.status_code != 200:
                await answer.aread()
                raise _failure(answer)
            async for line in _lines(answer):
                if line.startswith(b"data:"):
                    yield _event(line[5:])

    async def _patiently(self, method: str, path: str, **request: typing.Any) -> httpx.Response:
        pauses = _Pauses(self._settings.patience)
        while True:
            try:
                answer = await self._http.request(method, path, **request)
                if answer.is_success:
                    return answer
                raise _failure(answer)
            except httpx.TransportError as error:
                reason = f"{type(error).__name__}: {error}"
            except _RetryLater as error:
                reason = str(error)
                pauses.at_least(error.seconds)
            await pauses.wait(reason)


class _RetryLater(Exception):  # noqa: N818 - internal, always caught here
    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class _Pauses:
    """Waits between attempts: doubled up to 8 s, and no longer than the patience without progress."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self.reset()

    def reset(self) -> None:
        self._pause, self._least = _PAUSE, 0.0
        self._until = asyncio.get_running_loop().time() + self._patience

    def at_least(self, seconds: float) -> None:
        self._least = seconds

    async def wait(self, reason: str) -> None:
        pause = max(self._pause, self._least)
        if asyncio.get_running_loop().time() + pause > self._until:
            text = f"Runnel could not be reached for {self._patience:g} s: {reason}"
            raise GatewayError("runnel.unreachable", text, retryable=True)
        await asyncio.sleep(pause)
        self._pause, self._least = min(self._pause * 2, _LONGEST_PAUSE), 0.0


def _failure(answer: httpx.Response) -> Exception:
    try:
        error = answer.json()["error"]
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        code, message = f"http_{answer.status_code}", f"HTTP {answer.status_code}"
    if answer.status_code in _RETRIED:
        seconds = answer.headers.get("retry-after", "")
        return _RetryLater(f"{code}: {message}", float(seconds) if seconds.isdecimal() else 0.0)
    return GatewayError(f"runnel.{code}", f"Runnel refused the call: {message}")


def _event(data: bytes) -> Json:
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict) or not isinstance(event.get("sequence"), int):
        raise GatewayError("runnel.response_invalid", "what answers at the gateway's address is no Runnel")
    return event


async def _lines(answer: httpx.Response) -> AsyncGenerator[bytes, None]:
    # Not `aiter_lines`, which also ends lines at U+2028 inside a text.
    rest = b""
    async for piece in answer.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > _LINE_BYTES:
            raise GatewayError("runnel.response_invalid", f"a line of the stream has more than {_LINE_BYTES} bytes")
        for line in lines:
            yield line
