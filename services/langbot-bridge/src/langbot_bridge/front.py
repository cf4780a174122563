"""The HTTP face of the bridge: verifies the gateway's requests and passes them to the plugin's worker."""

import asyncio
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


class Front:
    """The runner API of all workers, as one endpoint."""

    def __init__(self, keys: Keys, fleet: Fleet, mcp: Mcp) -> None:
        self._keys, self._fleet, self._mcp = keys, fleet, mcp
        self._seen = SeenIds()
        # The runner of each live run, for its cancel.
        self._live: dict[str, str] = {}

    def app(self) -> web.Application:
        """The routes. All but the health check and `/mcp` are signed."""
        app = web.Application(middlewares=[refusals], client_max_size=LIMITS.body_bytes)
        app.router.add_get("/healthz", self.health)
        app.router.add_get("/runners", self.list_runners)
        app.router.add_post("/runs", self.start_run)
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
        if action == "cancel":
            return await self._cancel(_text(message, "run_id"))
        raise Refusal(400, "invalid_argument", "action must be list_runners, run or cancel")

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
        headers = {"x-bridge-signed-at": str(signed_at)}
        if traceparent := request.headers.get("traceparent"):
            headers["traceparent"] = traceparent
        self._live[run_id] = runner_id
        try:
            return await _passed_on(request, worker, body, headers)
        finally:
            del self._live[run_id]

    async def _cancel(self, run_id: str) -> web.Response:
        runner_id = self._live.get(run_id)
        worker = self._fleet.worker_of(runner_id) if runner_id else None
        if worker is None:
            raise Refusal(404, "not_found", f"there is no run {run_id} here")
        body = json.dumps({"runner_id": runner_id}).encode()
        try:
            async with asyncio.timeout(LIMITS.body_seconds):
                async with worker.post(f"/runs/{quote(run_id, safe='')}/cancel", body, {}) as answer:
                    return web.Response(status=answer.status, body=await answer.read())
        except (DownError, TimeoutError) as error:
            raise _down(worker) from error


async def _passed_on(
    request: web.Request, worker: Worker, body: bytes, headers: typing.Mapping[str, str]
) -> web.StreamResponse:
    response = web.StreamResponse(headers=_STREAM_HEADERS)
    try:
        async with worker.post("/runs", body, headers) as answer:
            if answer.status != 200:
                return web.Response(status=answer.status, body=await answer.read(), content_type="application/json")
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
    except DownError as error:
        raise _down(worker) from error
    except aiohttp.ClientError as error:
        # Without an end of the body the gateway knows that the run was cut.
        log.error("worker %s broke off a run: %s", worker.name, error)
        if request.transport is not None:
            request.transport.abort()
        return response
    await response.write_eof()
    return response


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
