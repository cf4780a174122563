"""Run context `ctx` of a runner function."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Any

from ..errors import ApiError
from ..types import Json, Message
from ._grants import MissingPermissions
from .context import AgentRunContext, Permissions, RetryOrigin, RunResume
from .data import Files, History, Interactions, Knowledge, PlatformActions, State, Wakes
from .failure import RunFailed
from .host import HostApi
from .models import Models, Tools
from .results import Result

log = logging.getLogger("runnel.runner")

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
        self.platform = PlatformActions(host)
        self.wakes = Wakes(host)

    async def agent_loop(
        self, messages: str | list[Message], *, max_turns: int = 8, checkpoints: bool = False, **options: Any
    ) -> AsyncGenerator[str | Result, None]:
        """Asks a model, calls the tools that it asks for, and asks again, until it answers without a call.

        Yields the text and the tool calls, for the runner to yield on; appends each message to `messages`. Offers the
        granted tools, unless `tools` names others. `options` are those of `ctx.models.stream`. In a resumable run, a
        model that lost its gateway before its first text is called again. With `checkpoints`, the messages are the
        checkpoint after each turn with calls, if the run may write state; a new attempt begins with them. Raises
        `RunFailed` after `max_turns` turns with calls.
        """
        turns: list[Message] = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        if checkpoints and self.resume:
            turns[:] = self.resume["checkpoint"]
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
            if checkpoints and self.state.is_granted:
                await self._checkpoint_turns(turns)
        raise RunFailed("runner.no_answer", f"the model called tools in {max_turns} turns without an answer")

    async def _checkpoint_turns(self, turns: list[Message]) -> None:
        try:
            await self.checkpoint(turns)
        except ApiError as error:
            # The checkpoint before it stays.
            if error.code != "payload_too_large":
                raise
            log.warning("run %s has more messages than a checkpoint holds", self.run_id)

    async def checkpoint(self, value: Any) -> None:
        """Stores the state from which a new attempt continues the run if this process is lost; 256 KiB of JSON at most.

        It includes the results yielded so far; the call waits until the gateway has stored them. The agent's `retry`
        decides about a new attempt, which finds the value in `resume`.
        """
        put: Json = {"value": value}
        if last := self.host.last_result():
            put["sequence"] = last
        await self.host.json("PUT", "checkpoint", json=put)

    @property
    def resume(self) -> RunResume | None:
        """Checkpoint that this attempt continues from; None: it starts from the event."""
        return self.context["runtime"].get("resume")

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
    def origin(self) -> RetryOrigin | None:
        """Results of an ended run after which this one begins; None for a run that begins with its event.

        The gateway answers tool calls that the ended run made before them.
        """
        return self.context["runtime"].get("from")

    @property
    def answer(self) -> Json | None:
        """Answer to an earlier question, for events `interaction.submitted`; otherwise None."""
        found: Any = self.context["input"].get("interaction")
        return found if isinstance(found, dict) else None
