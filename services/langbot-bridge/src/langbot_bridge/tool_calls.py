"""Calls of a plugin's Tool components."""

import asyncio
import inspect
import json
import typing

import pydantic
from langbot_plugin.api.entities.builtin.provider.session import LauncherTypes, Session

from .limits import LIMITS
from .payload import Payload
from .plugin import LoadedTool

_ERROR_CHARACTERS = 2000


class ToolCalls:
    """Bounds the calls of all tools of a worker."""

    def __init__(self) -> None:
        self._permits = asyncio.Semaphore(LIMITS.tool_calls)

    async def call(self, tool: LoadedTool, parameters: Payload) -> Payload:
        """The result of a call as MCP has it; a failed call is a result with `isError`.

        The call belongs to no run, so the tool gets a session of its own and no host API.
        """
        try:
            async with asyncio.timeout(LIMITS.tool_seconds), self._permits:
                answer = await tool.instance.call(parameters, **_context_of(tool))
            made = _content(answer)
        except TimeoutError:
            return _error(f"the tool did not answer within {LIMITS.tool_seconds:g} s")
        except Exception as error:
            return _error(f"{type(error).__name__}: {error}"[:_ERROR_CHARACTERS])
        if len(json.dumps(made)) > LIMITS.tool_bytes:
            return _error(f"the answer of the tool has more than {LIMITS.tool_bytes} bytes")
        return made


def _context_of(tool: LoadedTool) -> dict[str, typing.Any]:
    parameters = inspect.signature(tool.instance.call).parameters
    if "session" not in parameters or "query_id" not in parameters:
        return {}
    session = Session(launcher_type=LauncherTypes.PERSON, launcher_id="mcp", sender_id="mcp")
    return {
        "session": session,
        "query_id": 0,
        **({"query_uuid": None} if "query_uuid" in parameters else {}),
    }


def _content(answer: typing.Any) -> Payload:
    if isinstance(answer, pydantic.BaseModel):
        answer = answer.model_dump(mode="json")
    if isinstance(answer, list) and any(isinstance(item, pydantic.BaseModel) for item in answer):
        answer = [
            item.model_dump(mode="json", exclude_none=True) if isinstance(item, pydantic.BaseModel) else item
            for item in answer
        ]
        return {"content": [_part(item) for item in answer]}
    text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    made: Payload = {"content": [{"type": "text", "text": text}]}
    if isinstance(answer, dict):
        made["structuredContent"] = answer
    return made


def _part(item: typing.Any) -> Payload:
    if isinstance(item, dict) and item.get("image_base64"):
        head, _, data = str(item["image_base64"]).rpartition(",")
        kind = head.removeprefix("data:").split(";")[0] or "image/png"
        return {"type": "image", "data": data, "mimeType": kind}
    if isinstance(item, dict) and isinstance(item.get("text"), str):
        return {"type": "text", "text": item["text"]}
    return {"type": "text", "text": json.dumps(item, ensure_ascii=False)}


def _error(text: str) -> Payload:
    return {"content": [{"type": "text", "text": text}], "isError": True}
