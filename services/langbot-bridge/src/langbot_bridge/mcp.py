"""Tools of plugins by the Model Context Protocol: streamable HTTP, stateless, answers as JSON."""

import asyncio
import hmac
import json
import typing
from urllib.parse import quote

from aiohttp import web

from .fleet import DownError, Fleet
from .limits import LIMITS
from .payload import Payload, mapping
from .refusal import Refusal

_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
_INVALID_REQUEST, _NO_METHOD, _INVALID_PARAMS, _INTERNAL = -32600, -32601, -32602, -32603


class RpcError(Exception):
    """An error of JSON-RPC."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Mcp:
    """The route `/mcp`. Closed without a token, since each caller can call every tool."""

    def __init__(self, fleet: Fleet, token: str) -> None:
        self._fleet, self._token = fleet, token

    async def answer(self, request: web.Request) -> web.Response:
        """One message in, one answer out; notifications get 202."""
        self._authorize(request)
        if request.method != "POST":
            # A stateless server: no stream for GET, and no session for DELETE.
            raise Refusal(405, "invalid_argument", "this server accepts only POST")
        try:
            async with asyncio.timeout(LIMITS.body_seconds):
                body = await request.read()
            message = json.loads(body)
        except TimeoutError as error:
            raise Refusal(408, "invalid_argument", "the body did not arrive") from error
        except (ValueError, RecursionError):
            return _failed(None, RpcError(-32700, "the body is no JSON"), 400)
        if len(body) > LIMITS.tool_bytes or not isinstance(message, dict):
            return _failed(None, RpcError(_INVALID_REQUEST, "one message of 4 MiB at most is taken"), 400)
        if "id" not in message:
            return web.Response(status=202)
        try:
            result = await self._result(str(message.get("method")), mapping(message.get("params")))
        except RpcError as error:
            return _failed(message["id"], error, 200)
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})

    def _authorize(self, request: web.Request) -> None:
        if not self._token:
            text = "no tools are served here: set LANGBOT_BRIDGE_MCP_TOKEN"
            raise Refusal(404, "not_found", text)
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            raise Refusal(401, "unauthenticated", "the bearer token is not the one of this server")

    async def _result(self, method: str, params: Payload) -> Payload:
        if method == "initialize":
            version = params.get("protocolVersion")
            return {
                "protocolVersion": version if version in _VERSIONS else _VERSIONS[0],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "langbot-bridge", "version": "0.1.0"},
            }
        if method == "ping":
            return {}
        if method == "tools/list":
            return {"tools": self._fleet.tools()}
        if method == "tools/call":
            return await self._call(params)
        raise RpcError(_NO_METHOD, f"there is no method {method[:64]}")

    async def _call(self, params: Payload) -> Payload:
        name = params.get("name")
        worker = self._fleet.worker_of_tool(name) if isinstance(name, str) else None
        if worker is None:
            raise RpcError(_INVALID_PARAMS, "there is no such tool")
        body = json.dumps(mapping(params.get("arguments"))).encode()
        try:
            async with (
                asyncio.timeout(LIMITS.tool_seconds + 5.0),
                worker.post(f"/tools/{quote(str(name), safe='')}", body, {}) as answer,
            ):
                if answer.status != 200:
                    raise RpcError(_INTERNAL, f"the tool {name} cannot be called, see the bridge's log")
                return typing.cast(Payload, await answer.json())
        except (DownError, TimeoutError) as error:
            raise RpcError(_INTERNAL, f"the plugin {worker.name} is being restarted") from error


def _failed(message_id: typing.Any, error: RpcError, status: int) -> web.Response:
    body = {"jsonrpc": "2.0", "id": message_id, "error": {"code": error.code, "message": str(error)}}
    return web.json_response(body, status=status)
