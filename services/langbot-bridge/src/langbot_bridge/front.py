"""The HTTP face of the bridge: verifies the gateway's requests and passes them to the plugin's worker."""

import asyncio
import contextlib
import dataclasses
import json
import logging
import time
import typing
from urllib.parse import quote

import aiohttp
from aiohttp import web

from .fleet import DownError, Fleet, Worker
from .limits import LIMITS
from .mcp import Mcp
from .payload import Payload, mapping
from .refusal import Refusal, refusals
from .signatures import Keys, SeenIds, SignatureError

log = logging.getLogger(__name__)

_STREAM_HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}


_Call = contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]


@dataclasses.dataclass(eq=False)
class _LiveRun:
    """A run and the request that reads its results."""

    run_id: str
    runner_id: str
    connection: asyncio.Task[typing.Any] | None = None


class Front:
    """The runner API of all workers, as one endpoint."""

    def __init__(self, keys: Keys, fleet: Fleet, mcp: Mcp) -> None:
        self._keys, self._fleet, self._mcp = keys, fleet, mcp
        self._seen = SeenIds()
        self._live: dict[str, _LiveRun] = {}

    def app(self) -> web.Application:
        """The routes. All but the health check and `/mcp` are signed."""
        app = web.Application(middlewares=[refusals], client_max_size=LIMITS.body_bytes)
        app.router.add_get("/healthz", self.health)
        app.router.add_get("/runners", self.list_runners)
        app.router.add_post("/runs", self.start_run)
        app.router.add_post("/runs/{run_id}/resume", self.resume_run)
        app.router.add_post("/runs/{run_id}/cancel", self.cancel_run)
        app.router.add_post("/", self.call_single_url)
        app.router.add_route("*", "/mcp", self._mcp.answer)
        return app

    async def health(self, _request: web.Request) -> web.Response:
        """200 while a plugin is served, 503 while none is. `degraded` names the others, without reasons."""
        down = [missing["plugin"] for missing in self._fleet.unavailable()]
        status: Payload = {"status": "degraded" if down else "ok", "active_runs": len(self._live)}
        is_down = len(down) == len(self._fleet.workers)
        return web.json_response({**status, **({"down": down} if down else {})}, status=503 if is_down else 200)

    async def list_runners(self, request: web.Request) -> web.Response:
        """Lists the runners of all plugins."""
        await self._signed(request)
        return self._list()

    async def start_run(self, request: web.Request) -> web.StreamResponse:
        """Executes a run and streams its results."""
        body, signed_at = await self._signed(request)
        return await self._start(request, _object(body), body, signed_at)

    async def resume_run(self, request: web.Request) -> web.StreamResponse:
        """Streams the results of a run that lost its connection."""
        body, signed_at = await self._signed(request)
        return await self._resume(request, _object(body), body, signed_at)

    async def cancel_run(self, request: web.Request) -> web.Response:
        """Asks a run to end."""
        await self._signed(request)
        return await self._cancel(request.match_info["run_id"])

    async def call_single_url(self, request: web.Request) -> web.StreamResponse:
        """The same calls for an endpoint with one URL; `action` selects the call."""
        body, signed_at = await self._signed(request)
        message = _object(body)
        action = message.get("action")
        if action == "list_runners":
            return self._list()
        if action == "run":
            return await self._start(request, message, body, signed_at)
        if action == "resume":
            return await self._resume(request, message, body, signed_at)
        if action == "cancel":
            return await self._cancel(_text(message, "run_id"))
        raise Refusal(400, "invalid_argument", "action must be list_runners, run, resume or cancel")

    async def _signed(self, request: web.Request) -> tuple[bytes, int]:
        """The body and the gateway's time of a request whose signature holds and whose id is new."""
        try:
            signed_at = self._keys.fresh(request.headers, time.time())
            async with asyncio.timeout(LIMITS.body_seconds):
                body = await request.read()
            self._keys.verify(request.headers, body)
        except SignatureError as error:
            raise Refusal(401, "unauthenticated", str(error)) from error
        except TimeoutError as error:
            raise Refusal(408, "invalid_argument", "the body did not arrive") from error
        if not self._seen.insert(request.headers["webhook-id"], signed_at, time.time()):
            raise Refusal(409, "conflict", "this webhook-id was used before")
        return body, signed_at

    def _list(self) -> web.Response:
        missing = self._fleet.unavailable()
        extra = {"unavailable": missing} if missing else {}
        return web.json_response({"runners": self._fleet.runners(), **extra})

    async def _start(self, request: web.Request, message: Payload, body: bytes, signed_at: int) -> web.StreamResponse:
        runner_id = _text(message, "runner_id")
        run_id = _text(message, "context", "run_id")
        _text(message, "host", "base_url")
        _text(message, "host", "token")
        worker = self._fleet.worker_of(runner_id)
        if worker is None:
            raise Refusal(404, "not_found", f"there is no runner {runner_id} here")
        if run_id in self._live:
            raise Refusal(409, "conflict", f"run {run_id} is being executed already")
        if len(self._live) >= LIMITS.live_runs:
            raise Refusal(503, "rate_limited", "all places for runs are taken", retry_after=1)
        headers = {"runnel-attempt": request.headers.get("runnel-attempt", "1")}
        if traceparent := request.headers.get("traceparent"):
            headers["traceparent"] = traceparent
        live = self._live[run_id] = _LiveRun(run_id, runner_id)
        call = worker.post("/runs", body, {**headers, "x-bridge-signed-at": str(signed_at)})
        return await self._passed_on(request, worker, call, live)

    async def _resume(self, request: web.Request, message: Payload, body: bytes, signed_at: int) -> web.StreamResponse:
        run_id, runner_id = _text(message, "run_id"), _text(message, "runner_id")
        _text(message, "host", "base_url")
        _text(message, "host", "token")
        if not (isinstance(message.get("attempt"), int) and isinstance(message.get("after") or 0, int)):
            raise Refusal(400, "invalid_argument", "/attempt and /after must be numbers")
        worker = self._fleet.worker_of(runner_id)
        if worker is None:
            raise Refusal(404, "not_found", f"there is no runner {runner_id} here")
        path = f"/runs/{quote(run_id, safe='')}/resume"
        call = worker.post(path, body, {"x-bridge-signed-at": str(signed_at)})
        return await self._passed_on(request, worker, call, _LiveRun(run_id, runner_id))

    async def _passed_on(self, request: web.Request, worker: Worker, call: _Call, live: _LiveRun) -> web.StreamResponse:
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        is_lost = False
        try:
            async with call as answer:
                if answer.status != 200:
                    return web.Response(status=answer.status, body=await answer.read(), content_type="application/json")
                self._take(live)
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
        except (asyncio.CancelledError, ConnectionError):
            # The gateway closed its connection: the run waits for a resume, and may be cancelled until then.
            is_lost = True
            asyncio.get_running_loop().call_later(LIMITS.resume_seconds, self._forget, live)
            raise
        except DownError as error:
            raise _down(worker) from error
        except aiohttp.ClientError as error:
            # Without an end of the body the gateway notices that the run was cut.
            log.error("worker %s broke off a run: %s", worker.name, error)
            if request.transport is not None:
                request.transport.abort()
            return response
        finally:
            if not is_lost:
                self._forget(live)
        await response.write_eof()
        return response

    def _take(self, live: _LiveRun) -> None:
        """Gives a run to a connection, and closes the one before it."""
        earlier = self._live.get(live.run_id)
        if earlier is not None and earlier.connection is not None:
            earlier.connection.cancel()
        self._live[live.run_id] = live
        live.connection = asyncio.current_task()

    def _forget(self, live: _LiveRun) -> None:
        # A later connection may have the run.
        if self._live.get(live.run_id) is live:
            del self._live[live.run_id]

    async def _cancel(self, run_id: str) -> web.Response:
        live = self._live.get(run_id)
        worker = self._fleet.worker_of(live.runner_id) if live else None
        if live is None or worker is None:
            raise Refusal(404, "not_found", f"there is no run {run_id} here")
        body = json.dumps({"runner_id": live.runner_id}).encode()
        try:
            async with asyncio.timeout(LIMITS.body_seconds):
                async with worker.post(f"/runs/{quote(run_id, safe='')}/cancel", body, {}) as answer:
                    return web.Response(status=answer.status, body=await answer.read())
        except (DownError, TimeoutError) as error:
            raise _down(worker) from error


def _down(worker: Worker) -> Refusal:
    return Refusal(503, "rate_limited", f"plugin {worker.name} is being restarted", retry_after=1)


def _object(body: bytes) -> Payload:
    try:
        message = json.loads(body)
    except ValueError as error:
        raise Refusal(400, "invalid_argument", "the body is no JSON") from error
    if not isinstance(message, dict):
        raise Refusal(400, "invalid_argument", "the body is no object")
    return message


def _text(message: Payload, *path: str) -> str:
    value: typing.Any = message
    for part in path:
        value = mapping(value).get(part)
    if not isinstance(value, str) or not value:
        raise Refusal(400, "invalid_argument", f"/{'/'.join(path)} must be a text that is not empty")
    return value
