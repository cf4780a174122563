"""Run context `ctx` of a runner function."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from ..errors import ApiError
from ..types import Json, Message
from ._grants import MissingPermissions
from .context import AgentRunContext, Permissions
from .data import Files, History, Interactions, Knowledge, State
from .failure import RunFailed
from .host import HostApi
from .models import Models, Tools
from .results import Result

# Repeated model calls after a lost gateway, in one loop.
_MAX_LOST = 3


class RunContext:
    """Event of a run, and the resources that its grant opens.

    `context` has every field of the request; `host` calls the routes that have no method here. `is_cancelled` is true
    after a cancel of the run.
    """

    def __init__(self, context: AgentRunContext, host: HostApi, permissions: Permissions | None = None) -> None:
        self.context, self.host = context, host
        self.run_id = context["run_id"]
        self.is_cancelled = False
        self.missing = MissingPermissions(self.run_id, permissions or {})
        self.models = Models(host, context["resources"])
        self.tools = Tools(host, context["resources"], self.missing)
        self.knowledge = Knowledge(host, context, self.missing)
        self.history = History(host, context, self.missing)
        self.state = State(host, context, self.missing)
        self.files = Files(host, context)
        self.interactions = Interactions(host)

    async def agent_loop(
        self, messages: str | list[Message], *, max_turns: int = 8, **options: Any
    ) -> AsyncGenerator[str | Result, None]:
        """Asks a model, calls the tools that it asks for, and asks again, until it answers without a call.

        Yields the text and the tool calls, for the runner to yield on; appends each message to `messages`. Offers the
        granted tools, unless `tools` names others. `options` are those of `ctx.models.stream`. In a resumable run, a
        model that lost its gateway before its first text is called again. Raises `RunFailed` after `max_turns` turns
        with calls.
        """
        turns: list[Message] = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        options.setdefault("tools", self.tools.offered())
        lost = 0
        for _ in range(max_turns):
            answer = self.models.stream(turns, **options)
            while True:
                try:
                    async with contextlib.aclosing(answer):
                        async for text in answer:
                            yield text
                    break
                except ApiError as error:
                    if answer.text or lost == _MAX_LOST or not self.host.is_lost(error):
                        raise
                lost += 1
                answer = self.models.stream(turns, **options)
            if not answer.tool_calls:
                turns.append(answer.message)
                return
            async for result in self.tools.call_all(answer.message, turns):
                yield result
        raise RunFailed("runner.no_answer", f"the model called tools in {max_turns} turns without an answer")

    @property
    def text(self) -> str:
        """Text of the message; empty for events without one."""
        return self.context["input"].get("text") or ""

    @property
    def event_type(self) -> str:
        """Type of the event, for example `message.received`."""
        return self.context["event"]["event_type"]

    @property
    def conversation_id(self) -> str | None:
        """Id of the conversation; None for events without one."""
        return (self.context.get("conversation") or {}).get("conversation_id")

    @property
    def config(self) -> dict[str, Any]:
        """Configuration of the agent for this runner."""
        return self.context.get("config") or {}

    @property
    def answer(self) -> Json | None:
        """Answer to an earlier question, for events `interaction.submitted`; otherwise None."""
        found: Any = self.context["input"].get("interaction")
        return found if isinstance(found, dict) else None
