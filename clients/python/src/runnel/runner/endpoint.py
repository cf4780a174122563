"""Routes of a runner endpoint: discovery, runs, cancel, health. Independent of the web framework."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import httpx

from ..types import Json
from ..webhooks import SeenIds, SignatureError, Webhook
from ._runs import Runs
from ._stream import ResultStream, RunFrames
from .context import AgentRunnerManifest, AgentRunRequest, Capabilities, Permissions, ResumeRequest
from .execution import Execution, RunFunction
from .host import HostApi
from .run import RunContext

if TYPE_CHECKING:
    from . import asgi, wsgi

log = logging.getLogger("runnel.runner")

_RESUME_WITHIN_SECONDS = 120

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
        self._runs = Runs()
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
        resume_within_seconds: int | None = None,
    ) -> Callable[[Function], Function]:
        """Serves the decorated function as the runner `plugin:{author}/{plugin}/{name}`; `acme/echo` is short for
        `plugin:acme/echo/default`.

        The function is an `async def` with one argument, the `RunContext`. It yields text and results, or returns
        text. `permissions` is the most that an agent of it can be granted. With the capability `resumable` a run works
        on for `resume_within_seconds` (120) after its connection, until a gateway resumes it. Another id, or one that
        is defined twice, raises `ValueError`.
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
        if resume_within_seconds is not None:
            manifest["resume_within_seconds"] = resume_within_seconds

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
            return self._start(cast(AgentRunRequest, body), _attempt(request), signed_at)
        if action == "resume":
            return self._resume(cast(ResumeRequest, body), signed_at)
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

    def _start(self, request: AgentRunRequest, attempt: int, signed_at: int) -> Response:
        function = self._functions.get(request["runner_id"])
        if function is None:
            raise Rejection(404, "not_found", f"there is no runner {request['runner_id']} here")
        context, manifest = request["context"], self._manifests[request["runner_id"]]
        run_id = context["run_id"]
        if run_id in self._runs.live:
            raise Rejection(409, "conflict", f"run {run_id} is live already")
        if len(self._runs.live) >= self._max_runs:
            raise Rejection(503, "rate_limited", "all places for runs are taken", retry_after=1)
        resume_within = _resume_within(manifest)
        deadline_at = context["runtime"].get("deadline_at")
        host = HostApi(request["host"], deadline_at, float(signed_at), self._transport, resume_within)
        stream = ResultStream(self._keep_alive, resume_within)
        Execution(RunContext(context, host, manifest.get("permissions")), function, stream, self._runs)
        return _streamed(stream.attach(attempt, 0))

    def _resume(self, request: ResumeRequest, signed_at: int) -> Response:
        run_id, attempt, after = request["run_id"], request["attempt"], request.get("after") or 0
        stream = self._runs.stream_of(run_id)
        if stream is None or stream.resume_within is None:
            raise Rejection(404, "not_found", f"there is no run {run_id} here")
        if attempt <= stream.attempt:
            raise Rejection(409, "conflict", f"run {run_id} has attempt {stream.attempt}")
        if not stream.buffer.has_after(after):
            # The gateway ends the run after this response.
            stream.abandon()
            raise Rejection(404, "not_found", f"results after {after} of run {run_id} are dropped")
        if (execution := self._runs.live.get(run_id)) is not None:
            execution.run.host.move(request["host"], float(signed_at))
        return _streamed(stream.attach(attempt, after))

    def _cancel(self, run_id: str) -> Response:
        execution = self._runs.live.get(run_id)
        if execution is None:
            raise Rejection(404, "not_found", f"there is no run {run_id} here")
        execution.cancel()
        return _json(202, {})


def _streamed(frames: RunFrames) -> Response:
    headers = {
        "content-type": "text/event-stream",
        "cache-control": "no-cache, no-transform",
        "x-accel-buffering": "no",
    }
    return Response(200, headers, frames=frames)


def _attempt(request: Request) -> int:
    """Number of the attempt that a run begins with."""
    stated = request.headers.get("runnel-attempt", "")
    return int(stated) if stated.isdecimal() else 1


def _resume_within(manifest: AgentRunnerManifest) -> float | None:
    """Seconds that a run works on without a connection; None without the capability."""
    if not manifest.get("capabilities", {}).get("resumable"):
        return None
    return manifest.get("resume_within_seconds") or _RESUME_WITHIN_SECONDS


def _action(request: Request) -> tuple[str, Json]:
    """The action and the body. An endpoint with a single URL has the action in the body."""
    call = f"{request.method} {request.path.rstrip('/')}"
    if call == "GET /runners":
        return "list_runners", {}
    run_call = re.fullmatch(r"POST /*runs/([^/]+)/(cancel|resume)", call)
    if run_call is not None and run_call[2] == "cancel":
        return "cancel", {"run_id": run_call[1]}
    if run_call is None and call not in ("POST /runs", "POST "):
        raise Rejection(404, "not_found", "there is no such route")
    try:
        body = json.loads(request.body)
        action = run_call[2] if run_call else "run" if call == "POST /runs" else body["action"]
        if action in _CHECKS:
            _CHECKS[action](body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"the body is no request of the runner protocol: {type(error).__name__} {error}"
        raise Rejection(400, "invalid_argument", message) from None
    if action not in ("list_runners", "cancel", *_CHECKS):
        raise Rejection(400, "invalid_argument", "action is not list_runners, run, resume or cancel")
    return action, body


def _check_run(body: Any) -> None:
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


def _check_resume(body: Any) -> None:
    for part, names in ((body, ("run_id",)), (body["host"], ("base_url", "token", "token_expires_at"))):
        for name in names:
            part[name]
    if not (isinstance(body["attempt"], int) and isinstance(body.get("after") or 0, int)):
        raise TypeError("attempt or after is no number")


_CHECKS = {"run": _check_run, "resume": _check_resume}


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
