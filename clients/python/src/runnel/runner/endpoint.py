"""Routes of a runner endpoint: discovery, runs, cancel, health. Independent of the web framework."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import httpx

from ..types import Json
from ..webhooks import SeenIds, SignatureError, Webhook
from .context import AgentRunnerManifest, AgentRunRequest, Capabilities, Permissions
from .execution import Execution, RunFunction
from .host import HostApi
from .run import RunContext

if TYPE_CHECKING:
    from . import asgi, wsgi

log = logging.getLogger("runnel.runner")

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclasses.dataclass
class Request:
    """Request for `Endpoint.handle`. `path` is relative to the endpoint's base URL; header names are lower-case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclasses.dataclass
class Response:
    """Response of `Endpoint.handle`. `frames` is the body of a run: close it when the gateway stops reading."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    frames: RunFrames | None = None


class RunFrames(AsyncIterator[bytes]):
    """Server-sent events of a run. The run is live until they end or are closed."""

    def __init__(self, frames: AsyncGenerator[bytes, None], ended: Callable[[], object]) -> None:
        self._frames, self._ended = frames, ended

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._frames)
        except BaseException:
            self._ended()
            raise

    async def aclose(self) -> None:
        """Ends the run, also one whose events were never read."""
        self._ended()
        await self._frames.aclose()


class Rejection(Exception):
    """Request that is answered with an error."""

    def __init__(self, status: int, code: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.retry_after = status, code, message, retry_after

    def response(self) -> Response:
        """Response with the error as its body."""
        retryable = self.retry_after is not None
        error = {"code": self.code, "message": self.message, "retryable": retryable, "details": {}}
        response = _json(self.status, {"error": error})
        if retryable:
            response.headers["retry-after"] = str(self.retry_after)
        return response


class Endpoint:
    """Runners that share one signing secret. It is an ASGI application; `wsgi` is a WSGI application.

    `secret` defaults to the variable RUNNER_SECRET; several, separated by white space, serve a rotation. Of the
    same `webhook-id`, a second request is refused. Beyond `max_runs` concurrent runs the endpoint answers 503 with
    `Retry-After`, and the gateway tries again. A body above `max_body_bytes` is refused with 413. A silent run sends
    a comment every `keep_alive_seconds`. Without a secret the constructor raises `ValueError`.
    """

    def __init__(
        self,
        secret: str | None = None,
        *,
        max_runs: int = 1024,
        max_body_bytes: int = 8 * 1024 * 1024,
        keep_alive_seconds: float = 15.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        secret = secret or os.environ.get("RUNNER_SECRET")
        if not secret:
            raise ValueError("no signing secret: set RUNNER_SECRET, or pass it to Endpoint")
        self.max_body_bytes = max_body_bytes
        self._webhook, self._seen = Webhook(secret), SeenIds()
        self._max_runs, self._keep_alive, self._transport = max_runs, keep_alive_seconds, transport
        self._manifests: dict[str, AgentRunnerManifest] = {}
        self._functions: dict[str, RunFunction] = {}
        self._live: dict[str, Execution] = {}
        self._wsgi: wsgi.WsgiApp | None = None

    def runner(
        self,
        runner_id: str,
        *,
        label: str | dict[str, str] | None = None,
        description: str | dict[str, str] | None = None,
        permissions: Permissions | None = None,
        capabilities: Capabilities | None = None,
        config_schema: Iterable[Json] = (),
    ) -> Callable[[Function], Function]:
        """Serves the decorated function as the runner `plugin:{author}/{plugin}/{name}`; `acme/echo` is short for
        `plugin:acme/echo/default`.

        The function is an `async def` with one argument, the `RunContext`. It yields text and results, or returns
        text. `permissions` is the most that an agent of it can be granted. Another id, or one that is defined twice,
        raises `ValueError`.
        """
        runner_id = _long_id(runner_id)
        if runner_id in self._manifests:
            raise ValueError(f"runner {runner_id} is defined twice")
        granted: Permissions = permissions or {}
        name = runner_id.rsplit("/", 1)[1]
        found: Capabilities = {
            "streaming": True,
            "interrupt": True,
            "tool_calling": bool(granted.get("tools")),
            "knowledge_retrieval": bool(granted.get("knowledge_bases")),
            "interactions": bool(granted.get("interactions")),
        }
        found.update(capabilities or {})
        manifest: AgentRunnerManifest = {
            "id": runner_id,
            "name": name,
            "label": _localized(label or name),
            "protocol_version": "1",
            "capabilities": found,
            "permissions": granted,
            "config_schema": list(config_schema),
        }
        if description is not None:
            manifest["description"] = _localized(description)

        def register(function: Function) -> Function:
            self._manifests[runner_id] = manifest
            self._functions[runner_id] = function
            return function

        return register

    async def handle(self, request: Request) -> Response:
        """Response to one request. Frameworks other than ASGI and WSGI call this."""
        try:
            return self._handle(request)
        except Rejection as rejection:
            return rejection.response()

    async def __call__(self, scope: Any, receive: asgi.Receive, send: asgi.Send) -> None:
        from .asgi import serve_asgi

        await serve_asgi(self, scope, receive, send)

    @property
    def wsgi(self) -> wsgi.WsgiApp:
        """WSGI application: for Flask, `DispatcherMiddleware(app.wsgi_app, {"/agent": endpoint.wsgi})`."""
        from .wsgi import WsgiApp

        if self._wsgi is None:
            self._wsgi = WsgiApp(self)
        return self._wsgi

    def serve(self, host: str = "127.0.0.1", port: int = 9100) -> None:
        """Serves until Ctrl-C, without a web framework, a thread for each connection. For development."""
        from .wsgi import serve

        serve(self, host, port)

    def _handle(self, request: Request) -> Response:
        if (request.method, request.path) == ("GET", "/healthz"):
            return Response(200, {"content-type": "text/plain"}, b"ok\n")
        signed_at = self._authenticate(request)
        action, body = _action(request)
        if action == "list_runners":
            return _json(200, {"runners": list(self._manifests.values())})
        if action == "run":
            return self._start(cast(AgentRunRequest, body), signed_at)
        return self._cancel(str(body.get("run_id")))

    def _authenticate(self, request: Request) -> int:
        if len(request.body) > self.max_body_bytes:
            raise Rejection(413, "payload_too_large", f"the body is larger than {self.max_body_bytes} bytes")
        now = time.time()
        try:
            signed_at = self._webhook.verify(request.headers, request.body, now)
        except SignatureError as error:
            raise Rejection(401, "unauthenticated", str(error)) from None
        # After the verification: unsigned requests must not fill the memory of ids.
        if not self._seen.add(request.headers["webhook-id"], signed_at, now):
            raise Rejection(409, "conflict", "this webhook-id was used before")
        return signed_at

    def _start(self, request: AgentRunRequest, signed_at: int) -> Response:
        function = self._functions.get(request["runner_id"])
        if function is None:
            raise Rejection(404, "not_found", f"there is no runner {request['runner_id']} here")
        context = request["context"]
        run_id = context["run_id"]
        if run_id in self._live:
            raise Rejection(409, "conflict", f"run {run_id} is live already")
        if len(self._live) >= self._max_runs:
            raise Rejection(503, "rate_limited", "all places for runs are taken", retry_after=1)
        deadline_at = context["runtime"].get("deadline_at")
        host = HostApi(request["host"], deadline_at, float(signed_at), self._transport)
        permissions = self._manifests[request["runner_id"]].get("permissions")
        execution = Execution(RunContext(context, host, permissions), function, self._keep_alive)
        headers = {
            "content-type": "text/event-stream",
            "cache-control": "no-cache, no-transform",
            "x-accel-buffering": "no",
        }
        self._live[run_id] = execution
        frames = RunFrames(execution.frames(), lambda: self._live.pop(run_id, None))
        return Response(200, headers, frames=frames)

    def _cancel(self, run_id: str) -> Response:
        execution = self._live.get(run_id)
        if execution is None:
            raise Rejection(404, "not_found", f"there is no run {run_id} here")
        execution.cancel()
        return _json(202, {})


def _action(request: Request) -> tuple[str, Json]:
    """The action and the body. An endpoint with a single URL has the action in the body."""
    call = f"{request.method} {request.path.rstrip('/')}"
    if call == "GET /runners":
        return "list_runners", {}
    parts = request.path.strip("/").split("/")
    if request.method == "POST" and len(parts) == 3 and (parts[0], parts[2]) == ("runs", "cancel"):
        return "cancel", {"run_id": parts[1]}
    if call not in ("POST /runs", "POST "):
        raise Rejection(404, "not_found", "there is no such route")
    try:
        body = json.loads(request.body)
        action = "run" if call == "POST /runs" else body["action"]
        if action == "run":
            _check(body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"the body is no request of the runner protocol: {type(error).__name__} {error}"
        raise Rejection(400, "invalid_argument", message) from None
    if action not in ("list_runners", "run", "cancel"):
        raise Rejection(400, "invalid_argument", "action is not list_runners, run or cancel")
    return action, body


def _check(body: Any) -> None:
    """Raises if a field is missing that the adapter itself reads."""
    context = body["context"]
    for part, names in (
        (body, ("runner_id",)),
        (context, ("run_id",)),
        (context["event"], ("event_id", "event_type")),
        (body["host"], ("base_url", "token", "token_expires_at")),
    ):
        for name in names:
            part[name]
    for name in ("input", "resources", "runtime"):
        context[name].get("")


def _long_id(text: str) -> str:
    """`plugin:{author}/{plugin}/{name}` of a runner id or of its short form `{author}/{plugin}`."""
    found = re.fullmatch(r"plugin:[^\s/:]+/[^\s/]+/[^\s/]+|(?P<short>[^\s/:]+/[^\s/:]+)", text)
    if found is None:
        raise ValueError(
            f"{text!r} is no runner id: use plugin:{{author}}/{{plugin}}/{{name}}, or {{author}}/{{plugin}}"
        )
    return f"plugin:{text}/default" if found["short"] else text


def _localized(text: str | dict[str, str]) -> dict[str, str]:
    return {"en_US": text} if isinstance(text, str) else text


def _json(status: int, body: Any) -> Response:
    return Response(status, {"content-type": "application/json"}, json.dumps(body).encode())
