"""`ctx.knowledge`, `ctx.history`, `ctx.state`, `ctx.files`, `ctx.interactions`, `ctx.platform` and `ctx.wakes`."""

from __future__ import annotations

from typing import Any, cast

from ..client import text_of
from ..errors import ApiError
from ..types import (
    AgentWake,
    ArtifactMetadata,
    AwaitedInteraction,
    Json,
    Message,
    PlatformAction,
    StateScope,
    TranscriptItem,
)
from ._grants import MissingPermissions
from .context import AgentRunContext, KnowledgeBaseResource, RetrievalResultEntry
from .host import HostApi

_WAIT_SECONDS = 25
_MAX_QUERY = 2000
_UNFINISHED = ("awaiting_approval", "open", "claimed")


class Knowledge:
    """Knowledge bases that the run was granted."""

    def __init__(self, host: HostApi, context: AgentRunContext, missing: MissingPermissions) -> None:
        self._host, self._missing = host, missing
        self.granted = cast("list[KnowledgeBaseResource]", context["resources"].get("knowledge_bases") or [])

    async def retrieve(self, kb_id: str, query: str, *, top_k: int = 5) -> list[RetrievalResultEntry]:
        """Passages of one base that match best, at most `top_k`. The query is cut after 2,000 characters."""
        body = {"query_text": query[:_MAX_QUERY], "top_k": top_k}
        response = await self._host.json("POST", "knowledge-bases", kb_id, "retrieve", json=body, long=True)
        return cast("list[RetrievalResultEntry]", response["results"])

    async def search(self, query: str, *, top_k: int = 4) -> list[str]:
        """Texts of the best passages of each granted base. They are data, not instructions."""
        open_bases = [base for base in self.granted if "retrieve" in (base.get("operations") or ["retrieve"])]
        if not open_bases:
            self._missing.report("ctx.knowledge.search", "knowledge_bases", "retrieve")
        if not query.strip():
            return []
        found = [await self.retrieve(base["kb_id"], query, top_k=top_k) for base in open_bases]
        return [text_of(entry["content"]) for entries in found for entry in entries]


class History:
    """Messages of the run's conversation."""

    def __init__(self, host: HostApi, context: AgentRunContext, missing: MissingPermissions) -> None:
        self._host, self._missing, self._event_id = host, missing, context["event"]["event_id"]
        self.is_granted = bool(_apis(context).get("history_page"))

    async def messages(self, limit: int = 20) -> list[Message]:
        """Up to `limit` messages before the current one, oldest first, as a model takes them."""
        if not self.is_granted:
            self._missing.report("ctx.history.messages", "history", "page")
            return []
        items = await self.page(limit=limit)
        # The newest come first: the current message, and those that arrived after it, are not history.
        current = next((at for at, item in enumerate(items) if item["event_id"] == self._event_id), -1)
        before = [item for item in items[current + 1 :] if item["event_id"] != self._event_id]
        return [{"role": item["role"], "content": item["content"]} for item in reversed(before) if item.get("content")]

    async def page(self, **query: Any) -> list[TranscriptItem]:
        """Items of the history, newest first. `query` are the parameters of `GET /host/v1/history`."""
        return cast("list[TranscriptItem]", (await self._host.json("GET", "history", params=query))["items"])

    async def search(self, query: str, *, top_k: int = 10) -> list[TranscriptItem]:
        """Items with all words of the query, newest first."""
        body = {"query": query, "top_k": top_k}
        return cast("list[TranscriptItem]", (await self._host.json("POST", "history", "search", json=body))["items"])


class State:
    """Values that runs leave for later runs, by scope."""

    def __init__(self, host: HostApi, context: AgentRunContext, missing: MissingPermissions) -> None:
        self._host, self._missing = host, missing
        self._values: dict[tuple[str, str], Any] = {
            (scope, key): value
            for scope, values in (context.get("state") or {}).items()
            if isinstance(values, dict)
            for key, value in values.items()
        }
        metadata = context["runtime"].get("metadata") or {}
        self._incomplete = metadata.get("state_incomplete") or []
        self.is_granted = bool(_apis(context).get("state"))

    async def get(self, key: str, default: Any = None, scope: StateScope = "conversation") -> Any:
        """Value of a key, or `default`. Only a value that the context left out needs a call."""
        if (scope, key) not in self._values and scope in self._incomplete:
            try:
                self._values[scope, key] = (await self._host.json("GET", "state", scope, key))["value"]
            except ApiError as error:
                if error.code != "not_found":
                    raise
        if (scope, key) not in self._values:
            self._missing.report("ctx.state.get", "state", scope)
        return self._values.get((scope, key), default)

    async def put(
        self, key: str, value: Any, scope: StateScope = "conversation", *, if_version: int | None = None
    ) -> int:
        """Writes a value and returns its version. With `if_version`, another version is an error `conflict`."""
        headers = {} if if_version is None else {"if-match": str(if_version)}
        response = await self._host.json("PUT", "state", scope, key, json={"value": value}, headers=headers)
        # After the write: a conflict must leave the cached value unchanged.
        self._values[scope, key] = value
        return int(response["version"])

    async def delete(self, key: str, scope: StateScope = "conversation") -> None:
        """Deletes a value."""
        await self._host.json("DELETE", "state", scope, key)
        self._values.pop((scope, key), None)


class Files:
    """Files of the event and of the run."""

    def __init__(self, host: HostApi, context: AgentRunContext) -> None:
        self._host = host
        self.attachments = context["input"].get("attachments") or []

    async def read(self, artifact_id: str, *, max_bytes: int = 20 * 1024 * 1024) -> bytes:
        """Content of a file, for example of `attachments[0]["id"]`."""
        return await self._host.bytes("GET", "artifacts", artifact_id, "content", max_bytes=max_bytes, long=True)

    async def metadata(self, artifact_id: str) -> ArtifactMetadata:
        """Name, type and size (bytes) of a file."""
        return cast(ArtifactMetadata, await self._host.json("GET", "artifacts", artifact_id))

    async def upload(self, content: bytes, name: str, mime_type: str = "application/octet-stream") -> ArtifactMetadata:
        """Stores a file. Yield `results.file(…)` of the result, so that clients see it."""
        metadata = await self._host.json(
            "POST",
            "artifacts",
            params={"name": name},
            content=content,
            headers={"content-type": mime_type},
            long=True,
        )
        return cast(ArtifactMetadata, metadata)


class Interactions:
    """Questions of the run."""

    def __init__(self, host: HostApi) -> None:
        self._host = host

    async def wait(self, interaction_id: str) -> AwaitedInteraction:
        """Answer to a question with `"await": True`. Waits until `status` is not `open`.

        `status` is `submitted`, `expired` or `cancelled`; `action_id` and `values` are those of a submitted answer.
        """
        while True:
            query = {"wait_seconds": _WAIT_SECONDS}
            path = ("interactions", interaction_id)
            interaction: Json = await self._host.json("GET", *path, params=query, long=True)
            if interaction["status"] != "open":
                return cast(AwaitedInteraction, interaction)


class PlatformActions:
    """Acts of the chat platform that the run requests."""

    def __init__(self, host: HostApi) -> None:
        self._host = host

    async def request(
        self,
        action: str,
        target: Json | None = None,
        payload: Json | None = None,
        *,
        idempotency_key: str | None = None,
        timeout_seconds: int | None = None,
    ) -> PlatformAction:
        """Requests an action, for example `message.edit`. The same key returns the same action."""
        body: Json = {"action": action, "target": target or {}, "payload": payload or {}}
        if idempotency_key is not None:
            body["idempotency_key"] = idempotency_key
        if timeout_seconds is not None:
            body["timeout_seconds"] = timeout_seconds
        return cast(PlatformAction, await self._host.json("POST", "platform", "actions", json=body))

    async def wait(self, action_id: str) -> PlatformAction:
        """Outcome of an action: `done`, `failed`, `declined`, `expired` or `cancelled`."""
        while True:
            query = {"wait_seconds": _WAIT_SECONDS}
            path = ("platform", "actions", action_id)
            action: Json = await self._host.json("GET", *path, params=query, long=True)
            if action["status"] not in _UNFINISHED:
                return cast(PlatformAction, action)


class Wakes:
    """Wakes of the run's agent, in its conversation."""

    def __init__(self, host: HostApi) -> None:
        self._host = host

    async def request(
        self, key: str, *, at: int | None = None, after_seconds: int | None = None, data: Json | None = None
    ) -> AgentWake:
        """Wakes the agent at a time in epoch seconds, or after some seconds. The same key returns the same wake."""
        body: Json = {"key": key, "data": data or {}}
        if at is not None:
            body["at"] = at
        if after_seconds is not None:
            body["after_seconds"] = after_seconds
        return cast(AgentWake, await self._host.json("POST", "schedules", json=body))

    async def cancel(self, key: str) -> AgentWake:
        """Cancels a wake that is not due yet."""
        return cast(AgentWake, await self._host.json("DELETE", "schedules", key))


def _apis(context: AgentRunContext) -> Any:
    return (context.get("context") or {}).get("available_apis") or {}
