"""Client of the gateway for asyncio."""

from __future__ import annotations

import os
import sys
import types
import uuid
from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

import httpx

from ._body import decoded
from ._calls import OpenCalls
from ._http import http_client
from ._paths import segment
from ._retry import Backoff, RetryLater, raise_for
from .errors import GatewayUnreachableError, RunnelError, error_of
from .events import RunEvent
from .stream import RunStream
from .types import (
    AgentInput,
    AgentRun,
    ArtifactMetadata,
    ClaimedAction,
    ConversationSummary,
    CountsByStatus,
    EventAccepted,
    EventEnvelope,
    Interaction,
    Json,
    PlatformAction,
    RunStatus,
    RunStreamLink,
    TranscriptItem,
    UsageGroupBy,
    UsageReport,
)

if sys.version_info >= (3, 11):
    from typing import Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["AsyncClient", "RunFailedError", "RunFilters", "delta_text", "message"]

DEFAULT_URL = "http://127.0.0.1:8700"
_TIMEOUT = httpx.Timeout(30.0, connect=10.0)
_TRANSFER = httpx.Timeout(300.0, connect=10.0)
_MAX_DOWNLOAD_BYTES = 100 * 1024 * 1024

T = TypeVar("T")


class RunFilters(TypedDict, total=False):
    """Filters of `runs` and `run_counts`. A run matches all of them; None is no filter.

    `created_after` (inclusive) and `created_before` are Unix seconds. `text` is the begin of a run id, event id or
    idempotency key. `error_code` is the code of the error of a run that did not complete. `posted_by` is the id of an
    API key.
    """

    agent_id: str | None
    runner_id: str | None
    endpoint_id: str | None
    parent_run_id: str | None
    conversation_id: str | None
    bot_id: str | None
    thread_id: str | None
    created_after: int | None
    created_before: int | None
    idempotency_key: str | None
    text: str | None
    error_code: str | None
    status_reason: str | None
    posted_by: str | None
    min_duration_ms: int | None
    max_duration_ms: int | None
    min_cost: float | None
    max_cost: float | None


class RunFailedError(RunnelError):
    """Error of `ask`: its run failed, was cancelled, or exceeded its deadline.

    `run_id` names the run, for example for `retry(run_id)`. `code` is the code of the failure, such as `timeout`,
    `cancelled`, or one of the runner.
    """

    def __init__(self, run_id: str, code: str, text: str) -> None:
        super().__init__(f"run {run_id} failed, {code}: {text}")
        self.run_id, self.code = run_id, code


def message(
    text: str, conversation_id: str | None = None, *, actor_id: str | None = None, files: tuple[str, ...] = ()
) -> EventEnvelope:
    """Event `message.received` with a text, for `stream` and `post_event`.

    Events of one `conversation_id` share a history. `actor_id` identifies the sender. `files` are the `artifact_id`s
    of uploads.
    """
    content: AgentInput = {"text": text}
    if files:
        content["attachments"] = [{"artifact_id": one} for one in files]
    event: EventEnvelope = {"event_type": "message.received", "input": content}
    if conversation_id is not None:
        event["conversation"] = {"conversation_id": conversation_id}
    if actor_id is not None:
        event["actor"] = {"actor_type": "user", "actor_id": actor_id}
    return event


class AsyncClient:
    """Client of one gateway with one API key of role `client`. Use it as `async with`, or call `aclose()`.

    `url` and `api_key` default to the variables RUNNEL_URL and RUNNEL_API_KEY. `patience` limits the seconds of
    retries without progress. Every post has an idempotency key, so retries create no second run. The client follows
    no redirects: the key goes to this gateway only. `transport` replaces the network in tests.

    Each call raises `ApiError` if the gateway rejects it, and `GatewayUnreachableError` if no attempt got a response
    in time. The methods below name their further errors. Lists are async iterators that request a page of 100 items
    when they need it. Without an API key the constructor raises `ValueError`. A gateway on a loopback address is called
    without a proxy; a proxy of the environment that cannot be used raises `RunnelError`.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        patience: float = 60.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        api_key = api_key or os.environ.get("RUNNEL_API_KEY")
        if not api_key:
            raise ValueError("no API key: set RUNNEL_API_KEY, or pass api_key; `runnel dev` prints one")
        self._patience, self._calls = patience, OpenCalls()
        url = url or os.environ.get("RUNNEL_URL") or DEFAULT_URL
        self._http = http_client(
            url,
            base_url=url,
            headers={"authorization": f"Bearer {api_key}", "accept-encoding": "identity"},
            timeout=_TIMEOUT,
            transport=transport,
        )

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections. Calls and streams that are live end with `ClientClosedError`."""
        await self._calls.close()
        await self._http.aclose()

    # --- events and runs ---

    async def ask(self, text: str, conversation_id: str | None = None) -> str:
        """Posts a message and returns the text of the last message of its run.

        Raises `RunFailedError` if the run fails, and the errors of `stream`.
        """
        answer = ""
        async with self.stream(message(text, conversation_id)) as events:
            async for event in events:
                if event["type"] == "message.completed":
                    answer = text_of(event["data"]["message"].get("content"))
                elif event["type"] == "run.completed":
                    last = event["data"].get("message")
                    answer = text_of(last.get("content")) if last else answer
                elif event["type"] == "run.failed":
                    failed = event["data"]
                    reason = failed.get("message") or failed.get("error") or "no message"
                    raise RunFailedError(event["run_id"], failed.get("code") or "unknown", reason)
        return answer

    async def post_event(self, event: EventEnvelope, *, idempotency_key: str | None = None) -> EventAccepted:
        """Posts an event and returns as soon as it is stored.

        `run_id` is None if no agent takes the event: `reason` is then `no_agent`, and `hint` names the next step. Pass
        an `idempotency_key` to repeat the call later: the gateway returns the first result for a known key.
        """
        headers = _idempotent(event, idempotency_key)
        response = await self._send("POST", "/v1/events", json=event, headers=headers)
        return cast(EventAccepted, response.json())

    def stream(self, event: EventEnvelope, *, idempotency_key: str | None = None) -> RunStream:
        """Events of the run of a posted event, across broken connections. The post is sent by the first iteration.

        The iteration raises `NoRunError` if no agent takes the event, and `StreamLostError` if a broken stream cannot
        be resumed within `patience`.
        """
        headers = _idempotent(event, idempotency_key)
        return RunStream.of_post(self._http, self._calls, self._patience, cast(Json, event), headers)

    def follow(self, run_id: str, after: int = 0) -> RunStream:
        """Events of a run after the sequence `after`, up to its terminal event. 0 begins at the first event.

        The iteration raises `StreamLostError` as `stream` does, and `ApiError` 410 if retention has deleted the events.
        """
        # Rejects a wrong id here, not at the first iteration.
        segment(run_id)
        return RunStream(self._http, self._calls, self._patience, run_id, after)

    def runs(
        self, *, statuses: RunStatus | Iterable[RunStatus] | None = None, **filters: Unpack[RunFilters]
    ) -> AsyncGenerator[AgentRun, None]:
        """Runs of the workspace that match all filters, newest first.

        `bot_id` and `thread_id` need a `conversation_id`; an empty text selects conversations without a bot or thread.
        """
        return self._pages("/v1/runs", {**_run_query(statuses, filters), "limit": 100}, "cursor")

    async def run_counts(
        self, *, statuses: RunStatus | Iterable[RunStatus] | None = None, **filters: Unpack[RunFilters]
    ) -> CountsByStatus:
        """Number of runs of each status that match all filters of `runs`.

        A count that is not `exact` is a lower bound: the gateway counts among the newest runs.
        """
        query = _present(_run_query(statuses, filters))
        return cast(CountsByStatus, await self._json("GET", "/v1/runs/counts", params=query))

    async def usage(
        self,
        *,
        since: int | None = None,
        until: int | None = None,
        group_by: UsageGroupBy = "agent",
        agent_id: str | None = None,
    ) -> UsageReport:
        """Calls, tokens and cost by day (UTC) and by agent, model, tool or knowledge base.

        `since` and `until` are Unix seconds, at most 92 days apart. Default: 30 days up to now.
        """
        query = _present({"from": since, "to": until, "group_by": group_by, "agent_id": agent_id})
        return cast(UsageReport, await self._json("GET", "/v1/usage", params=query))

    async def run(self, run_id: str) -> AgentRun:
        """Current state of a run. An unknown id raises `ApiError` 404."""
        return cast(AgentRun, await self._json("GET", f"/v1/runs/{segment(run_id)}"))

    async def cancel(self, run_id: str) -> AgentRun:
        """Requests the cancellation of a run and returns its current state. `follow` shows when it ends."""
        return cast(AgentRun, await self._json("POST", f"/v1/runs/{segment(run_id)}/cancel"))

    async def retry(self, run_id: str, *, after: int | None = None) -> AgentRun:
        """Runs the event of a failed, cancelled or timed-out run again. Returns the new run: see `retry_of`.

        With `after` the new run begins after the result with this sequence; its runner must be resumable. A second
        call returns the same new run. Raises `ApiError` 409 if the run cannot be retried; `details["reason"]` is then
        `run_live`, `run_completed`, `child_run` or `no_agent`, for example.
        """
        body = None if after is None else {"from": after}
        return cast(AgentRun, await self._json("POST", f"/v1/runs/{segment(run_id)}/retry", json=body))

    async def stream_link(self, run_id: str) -> RunStreamLink:
        """Link to the stream of a run, for a browser. It opens one stream, within a minute, and reads this run only."""
        return cast(RunStreamLink, await self._json("POST", f"/v1/runs/{segment(run_id)}/stream-link"))

    def conversations(self) -> AsyncGenerator[ConversationSummary, None]:
        """Conversations of the workspace, newest event first."""
        return self._pages("/v1/conversations", {"limit": 100}, "cursor")

    def history(
        self, conversation_id: str, *, bot_id: str | None = None, forward: bool = False
    ) -> AsyncGenerator[TranscriptItem, None]:
        """Messages of a conversation, newest first, or oldest first if `forward`."""
        direction = "forward" if forward else "backward"
        query = {"bot_id": bot_id, "direction": direction, "limit": 100}
        path = f"/v1/conversations/{segment(conversation_id)}/history"
        return self._pages(path, query, "after_cursor" if forward else "before_cursor")

    # --- interactions ---

    def interactions(
        self, *, conversation_id: str | None = None, run_id: str | None = None, status: str | None = "open"
    ) -> AsyncGenerator[Interaction, None]:
        """Questions of runs, newest first: the open ones, those of another `status`, or all with `status=None`."""
        query = {"conversation_id": conversation_id, "run_id": run_id, "status": status}
        return self._pages("/v1/interactions", query, "after")

    async def interaction(self, interaction_id: str) -> Interaction:
        """Question with the gateway's id: `metadata.interaction.id` of the event `action.requested`."""
        return cast(Interaction, await self._json("GET", f"/v1/interactions/{segment(interaction_id)}"))

    async def answer(
        self, interaction: Interaction, action_id: str | None = None, values: Json | None = None
    ) -> EventAccepted | Interaction:
        """Answers a question: `action_id` is one of its actions, `values` has a value for each field.

        Returns the `Interaction` if the run waits for the answer, and an `EventAccepted` if the answer started a run of
        its own. Raises `ApiError` 409 for a second answer, and 410 for a question that has expired.
        """
        body = {
            "interaction_id": interaction["request"]["interaction_id"],
            "action_id": action_id,
            "values": values or {},
        }
        path = f"/v1/interactions/{segment(interaction['id'])}/submit"
        return cast("EventAccepted | Interaction", await self._json("POST", path, json=body))

    # --- platform actions ---

    def actions(
        self, *, run_id: str | None = None, status: str | None = "open"
    ) -> AsyncGenerator[PlatformAction, None]:
        """Platform actions, newest first: the open ones, those of another `status`, or all with `status=None`."""
        return self._pages("/v1/actions", {"run_id": run_id, "status": status}, "after")

    async def action(self, action_id: str) -> PlatformAction:
        """Platform action: `metadata.action.id` of the event `action.requested`."""
        return cast(PlatformAction, await self._json("GET", f"/v1/actions/{segment(action_id)}"))

    async def claim_action(
        self, action_id: str, *, lease_seconds: int | None = None, claim_token: str | None = None
    ) -> ClaimedAction:
        """Claims an open action: only this program performs it, within `lease_seconds` (1-3,600, by default 60).

        With the `claim_token` of an earlier claim the lease is extended. Raises `ApiError` 409 if another program has
        claimed the action or it has ended.
        """
        body = _present({"lease_seconds": lease_seconds, "claim_token": claim_token})
        return cast(ClaimedAction, await self._json("POST", f"/v1/actions/{segment(action_id)}/claim", json=body))

    async def finish_action(
        self, claimed: ClaimedAction, output: Json | None = None, *, error: Json | None = None
    ) -> PlatformAction:
        """Reports the result of a claimed action: `output` of the platform, or `error` with `code` and `message`.

        A repeated report is accepted. Raises `ApiError` 410 if the claim has expired.
        """
        result = {"status": "failed", "error": error} if error else _present({"status": "done", "output": output})
        body = {"claim_token": claimed["claim_token"], **result}
        path = f"/v1/actions/{segment(claimed['action']['id'])}/result"
        return cast(PlatformAction, await self._json("POST", path, json=body))

    # --- files ---

    async def upload(
        self, content: bytes, name: str, mime_type: str = "application/octet-stream", *, expires_in: int | None = None
    ) -> ArtifactMetadata:
        """Uploads a file for an event: `message(text, files=(artifact_id,))`. It expires after `expires_in` seconds.

        Raises `ApiError` 413 for a file above the gateway's limit, and 415 for a type that it does not accept.
        """
        response = await self._send(
            "POST",
            "/v1/artifacts",
            params=_present({"name": name, "expires_in": expires_in}),
            content=content,
            headers={"content-type": mime_type},
            timeout=_TRANSFER,
        )
        return cast(ArtifactMetadata, response.json())

    async def download(self, artifact_id: str, *, max_bytes: int = _MAX_DOWNLOAD_BYTES) -> bytes:
        """Content of a file. Raises `RunnelError` if it is larger than `max_bytes`."""
        path = f"/v1/artifacts/{segment(artifact_id)}/content"
        return await self._calls.run(self._download(path, max_bytes))

    async def _download(self, path: str, max_bytes: int) -> bytes:
        async with self._http.stream("GET", path, timeout=_TRANSFER) as response:
            # `raise_for` names the API key as the cause; `read_bounded` does not.
            if response.status_code == 401:
                await response.aread()
                raise_for(response)
            return await read_bounded(response, max_bytes)

    # --- requests ---

    async def _json(self, method: str, path: str, **options: Any) -> Any:
        return (await self._send(method, path, **options)).json()

    async def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        return await self._calls.run(self._attempts(method, path, **options))

    async def _attempts(self, method: str, path: str, **options: Any) -> httpx.Response:
        backoff = Backoff(self._patience)
        while True:
            cause: Exception
            try:
                response = await self._http.request(method, path, **options)
                raise_for(response)
            except (httpx.RequestError, RetryLater) as error:
                cause = error
            else:
                return response
            if not await backoff.wait(cause):
                # The gateway responded, so its own error is raised.
                if isinstance(cause, RetryLater):
                    raise cause.error from None
                reason = str(cause) or type(cause).__name__
                text = f"no gateway at {self._http.base_url} for {self._patience:g} s: {reason}"
                raise GatewayUnreachableError(text) from cause

    async def _pages(self, path: str, query: Json, cursor: str) -> AsyncGenerator[Any, None]:
        query = _present(query)
        while True:
            page = await self._json("GET", path, params=query)
            for item in page["items"]:
                yield item
            # An empty page may have a next one, so only the cursor ends the list.
            if not page["has_more"] or not page.get("next_cursor"):
                return
            query[cursor] = page["next_cursor"]


async def read_bounded(response: httpx.Response, max_bytes: int) -> bytes:
    """Body of a successful response, at most `max_bytes`."""
    if response.status_code >= 300:
        await response.aread()
        raise error_of(response)
    content = bytearray()
    async for chunk in decoded(response):
        content += chunk
        if len(content) > max_bytes:
            raise RunnelError(f"the file is larger than {max_bytes} bytes: raise max_bytes to read it")
    return bytes(content)


def text_of(content: Any) -> str:
    """Text of a message's content: the text itself, or the joined texts of its parts."""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content)
    return content or ""


def delta_text(event: RunEvent) -> str:
    """Text of a `message.delta`; empty for other events, for deltas of tool calls, and for deltas without a chunk."""
    if event["type"] != "message.delta":
        return ""
    # The gateway rejects deltas without a chunk. Events from elsewhere, such as a stored log, may have none.
    return text_of((event["data"].get("chunk") or {}).get("content"))


def _idempotent(event: EventEnvelope, key: str | None) -> dict[str, str]:
    # The `event_id` is the key: the gateway stores an event with a repeated id once.
    if key is None and event.get("event_id"):
        return {}
    return {"idempotency-key": key or str(uuid.uuid4())}


def _run_query(statuses: RunStatus | Iterable[RunStatus] | None, filters: RunFilters) -> Json:
    joined = statuses if statuses is None or isinstance(statuses, str) else ",".join(statuses)
    return {"statuses": joined, **filters}


def _present(query: Json) -> Json:
    return {name: value for name, value in query.items() if value is not None}
