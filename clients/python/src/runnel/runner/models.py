"""`ctx.models` and `ctx.tools`: granted models and tools."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, cast

from ..client import text_of
from ..errors import ApiError
from ..types import Json, LlmTokenUsage, LlmTool, Message, ToolCall
from . import results
from ._grants import MissingPermissions
from .context import AgentResources, ModelResource, ToolResource
from .host import HostApi
from .results import Result

# Characters of a tool's result that clients see. The model receives all of it.
_SHOWN = 10_000
_COUNTED = ("prompt_tokens", "completion_tokens", "total_tokens")


class NoModelError(Exception):
    """Missing grant: the run has no model for this call. It ends the run as `runner.no_model`."""


class ModelAnswer(AsyncIterator[str]):
    """Async iterator over the pieces of a model's answer.

    After the last one, `message` is the complete message and `usage` its token counts, if the model reports them.
    """

    def __init__(self, events: AsyncGenerator[Any, None], models: Models) -> None:
        self.message: Message = {"role": "assistant", "content": ""}
        self.usage: LlmTokenUsage | None = None
        self._models = models
        self._pieces = self._read(events)

    def __aiter__(self) -> ModelAnswer:
        return self

    async def __anext__(self) -> str:
        return await anext(self._pieces)

    async def aclose(self) -> None:
        """Ends the call."""
        await self._pieces.aclose()

    @property
    def text(self) -> str:
        """Text so far."""
        return text_of(self.message.get("content"))

    @property
    def tool_calls(self) -> list[ToolCall]:
        """Tool calls of the model: pass `message` to `ctx.tools.call_all`."""
        return self.message.get("tool_calls") or []

    async def _read(self, events: AsyncGenerator[Any, None]) -> AsyncGenerator[str, None]:
        calls: dict[str, ToolCall] = {}
        fields = None
        try:
            async for event in events:
                if event.get("usage"):
                    self.usage = event["usage"]
                    self._models.count(event["usage"])
                chunk = event.get("chunk") or {}
                fields = chunk.get("provider_specific_fields") or fields
                for call in chunk.get("tool_calls") or []:
                    _join(calls, call)
                    self.message["tool_calls"] = list(calls.values())
                if piece := text_of(chunk.get("content")):
                    # `all_content` leaves out the thoughts of earlier pieces.
                    self.message["content"] = chunk.get("all_content") or self.text + piece
                    yield piece
            if calls and fields:
                # Some providers reject the results of tools without these fields.
                self.message["provider_specific_fields"] = fields
        finally:
            await events.aclose()


def _join(calls: dict[str, ToolCall], piece: ToolCall) -> None:
    # Each piece has the id of its call and more of its arguments.
    call = calls.setdefault(piece["id"], piece)
    if call is not piece:
        call["function"]["arguments"] += piece["function"]["arguments"]


class Models:
    """Models that the run was granted. Without `model`, a call uses the first one that supports it."""

    def __init__(self, host: HostApi, resources: AgentResources) -> None:
        self._host, self.granted = host, cast("list[ModelResource]", resources.get("models") or [])
        self.usage: dict[str, int] = {}

    def stream(
        self,
        messages: str | list[Message],
        *,
        model: str | None = None,
        tools: list[LlmTool] | None = None,
        **more: Any,
    ) -> ModelAnswer:
        """Answer of a model, piece by piece: `async for text in ctx.models.stream(messages)`.

        `more` are further members of the request, such as `extra_args` and `reasoning_level`.
        """
        name, body = self._named(model, "stream"), _request(messages, tools, more)
        return ModelAnswer(self._host.events("POST", "models", name, "stream", json=body), self)

    async def invoke(
        self,
        messages: str | list[Message],
        *,
        model: str | None = None,
        tools: list[LlmTool] | None = None,
        **more: Any,
    ) -> Message:
        """Complete answer of a model. `more` as for `stream`."""
        name, body = self._named(model, "invoke"), _request(messages, tools, more)
        response = await self._host.json("POST", "models", name, "invoke", json=body, long=True)
        self.count(response.get("usage") or {})
        return cast(Message, response["message"])

    async def rerank(self, query: str, documents: list[str], *, model: str | None = None, **more: Any) -> list[Json]:
        """Index and `relevance_score` of each document, the best first."""
        body = {"query": query, "documents": documents, **more}
        response = await self._host.json("POST", "models", self._named(model, "rerank"), "rerank", json=body, long=True)
        return cast("list[Json]", response["results"])

    async def count_tokens(self, messages: list[Message], *, model: str | None = None) -> int:
        """Number of tokens of a request."""
        name = self._named(model, "count_tokens")
        response = await self._host.json("POST", "models", name, "count-tokens", json={"messages": messages}, long=True)
        return int(response["tokens"])

    def count(self, usage: Json | LlmTokenUsage) -> None:
        """Adds tokens to the usage that the run reports at its end."""
        for name in _COUNTED:
            if isinstance(tokens := usage.get(name), int):
                self.usage[name] = self.usage.get(name, 0) + tokens

    def _named(self, model: str | None, operation: str) -> str:
        return self.default(operation) if model is None else model

    def default(self, operation: str = "stream") -> str:
        """Id of the first granted model that supports an operation: for clients with a model of their own."""
        for granted in self.granted:
            if operation in (granted.get("operations") or [operation]):
                return granted["model_id"]
        raise NoModelError(
            f"no model is granted for {operation}: name one in the agent's resource_policy.models, and the operation "
            "in the permissions of the runner"
        )


def _request(messages: str | list[Message], tools: list[LlmTool] | None, more: Json) -> Json:
    conversation: Any = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    return {"messages": conversation, "tools": tools or [], "remove_think": True, **more}


class Tools:
    """Tools that the run was granted."""

    def __init__(self, host: HostApi, resources: AgentResources, missing: MissingPermissions) -> None:
        self._host, self._missing = host, missing
        self.granted = cast("list[ToolResource]", resources.get("tools") or [])

    def offered(self) -> list[LlmTool]:
        """Granted tools in the form that a model request has."""
        if not self.granted:
            self._missing.report("ctx.tools.offered", "tools", "call")
        return [
            {
                "name": tool["tool_name"],
                "description": tool.get("description") or "",
                "parameters": tool.get("parameters") or {"type": "object"},
            }
            for tool in self.granted
        ]

    async def call(self, name: str, parameters: Json, *, idempotency_key: str | None = None) -> Any:
        """Result of a tool, any JSON. The same key calls the tool once, also after a lost response.

        Raises `ApiError`, for example `unauthorized` for a tool that is not granted.
        """
        if idempotency_key is None and self._host.resume_within is not None:
            # A call that breaks with its gateway is repeated only with a key.
            idempotency_key = secrets.token_hex(16)
        headers = {"idempotency-key": idempotency_key} if idempotency_key else {}
        body = {"parameters": parameters}
        return (await self._host.json("POST", "tools", name, "call", json=body, headers=headers, long=True))["result"]

    async def call_all(self, message: Message, messages: list[Message]) -> AsyncGenerator[Result, None]:
        """Calls the tools that a model's message asks for. Appends the message and their results to `messages`.

        Yields what clients see of it. An error of a tool is a result for the model; the end of the run is raised.
        """
        messages.append(message)
        for call in message.get("tool_calls") or []:
            name, parameters = call["function"]["name"], _parameters(call)
            yield results.tool_started(call["id"], name, parameters or {})
            text, error = await self._answer(name, parameters)
            shown = {"text": text[:_SHOWN]}
            yield results.tool_completed(call["id"], name, result=shown, error=error)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})

    async def _answer(self, name: str, parameters: Json | None) -> tuple[str, str | None]:
        if parameters is None:
            error = "the arguments are no JSON object"
            return f"Error: {error}", error
        try:
            result = await self.call(name, parameters)
        except ApiError as refused:
            if refused.is_run_over:
                raise
            return f"Error: {refused.message}", refused.message
        return _text_of_result(result), None


def _text_of_result(result: Any) -> str:
    """Result as a model reads it: a sole text unchanged, everything else as JSON."""
    if isinstance(result, str):
        return result
    # MCP tools answer with text blocks, other tools with a sole `text` or `value`.
    blocks = result.get("content") if isinstance(result, dict) and "structured_content" not in result else result
    if isinstance(blocks, list) and blocks and all(_is_text_block(block) for block in blocks):
        return "\n".join(block["text"] for block in blocks)
    if isinstance(result, dict) and len(result) == 1:
        [(name, text)] = result.items()
        if name in ("text", "value") and isinstance(text, str):
            return text
    return json.dumps(result, ensure_ascii=False)


def _is_text_block(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str)


def _parameters(call: ToolCall) -> Json | None:
    try:
        found = json.loads(call["function"]["arguments"] or "{}")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
