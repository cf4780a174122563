"""Error responses of the runner API."""

import logging
import typing

from aiohttp import web

log = logging.getLogger(__name__)

_CODES = {404: "not_found", 405: "invalid_argument", 413: "payload_too_large"}
_Handler = typing.Callable[[web.Request], typing.Awaitable[web.StreamResponse]]


class Refusal(Exception):
    """An HTTP status with the protocol's error object."""

    def __init__(self, status: int, code: str, message: str, retry_after: int = 0) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.retry_after = status, code, message, retry_after

    def response(self) -> web.Response:
        """The response; `retryable` if it has a `Retry-After`."""
        headers = {"retry-after": str(self.retry_after)} if self.retry_after else {}
        error = {
            "code": self.code,
            "message": self.message,
            "retryable": bool(self.retry_after),
            "details": {},
        }
        return web.json_response({"error": error}, status=self.status, headers=headers)


@web.middleware
async def refusals(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Turns refusals and the server's own errors into error objects."""
    try:
        return await handler(request)
    except Refusal as refusal:
        return refusal.response()
    except web.HTTPException as error:
        code = _CODES.get(error.status, "invalid_argument")
        return Refusal(error.status, code, error.reason).response()
    except RecursionError:
        return Refusal(400, "invalid_argument", "the body is nested too deeply").response()
    except Exception:
        log.exception("%s %s failed, answering 500", request.method, request.path)
        return Refusal(500, "runtime_error", "the bridge failed, see its log").response()
