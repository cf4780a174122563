"""Errors of the host API as the SDK knows them."""

import json
import typing

from langbot_plugin.entities.io.errors import ActionCallError

from .payload import mapping

_EXCERPT = 200


def action_error(
    action: str,
    code: str,
    message: str,
    *,
    retryable: bool = False,
    **details: typing.Any,
) -> ActionCallError:
    """The SDK turns it into an `AgentAPIException` with these fields."""
    error = {
        "code": code,
        "message": message,
        "retryable": retryable,
        "details": {"action": action, **details},
    }
    return ActionCallError(message, {"error": error})


def no_counterpart(action: str) -> ActionCallError:
    """The host API has nothing for this action."""
    return action_error(action, "not_found", f"{action} has no counterpart in Runnel")


def refused(action: str, status: int, body: bytes, retry_after: str | None = None) -> ActionCallError:
    """The SDK error for an HTTP error response of the gateway."""
    try:
        given = mapping(json.loads(body)["error"])
        code, message = str(given["code"]), str(given.get("message") or f"{action} failed")
    except (ValueError, KeyError, TypeError):
        retryable = status == 429 or status >= 500
        text = f"{action} failed: the gateway answered HTTP {status} without an error"
        return action_error(action, "runtime_error", text, retryable=retryable, status=status)
    details = {**mapping(given.get("details")), "status": status}
    if retry_after:
        details["retry_after"] = retry_after[:_EXCERPT]
    return action_error(action, code, message, retryable=bool(given.get("retryable")), **details)


def code_of(error: ActionCallError) -> str:
    """The code of an error that was made here."""
    return str(mapping(error.data.get("error")).get("code"))
