"""Client of the gateway for programs without asyncio."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ._loop import LoopThread
from .client import AsyncClient, RunFilters
from .events import RunEvent
from .stream import RunStream
from .types import (
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


class SyncRunStream(Iterator[RunEvent]):
    """Iterator over the events of a run, as `RunStream` with a plain `for`.

    Close a stream that you leave early: by `close()`, or by `with`. The run continues.
    """

    def __init__(self, loop: LoopThread, stream: RunStream) -> None:
        self._stream, self._events = stream, loop.iterate(stream)

    @property
    def run_id(self) -> str | None:
        """Id of the run, known from the first event on."""
        return self._stream.run_id

    @property
    def after(self) -> int:
        """Sequence of the last event."""
        return self._stream.after

    def __next__(self) -> RunEvent:
        return next(self._events)

    def close(self) -> None:
        """Closes the connection. The run continues."""
        self._events.close()  # type: ignore[attr-defined]

    def __enter__(self) -> SyncRunStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.close()


class Client:
    """Client with the methods of `AsyncClient`, blocking. Use it as `with`, or call `close()`. Threads may share one.

    Options and errors are those of `AsyncClient`. Lists are iterators that request a page of 100 items when they need
    it.
    """

    def __init__(self, url: str | None = None, api_key: str | None = None, **options: Any) -> None:
        self._client = AsyncClient(url, api_key, **options)
        self._loop = LoopThread()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections. Calls and streams of other threads end with `ClientClosedError`."""
        self._loop.stop(self._client.aclose())

    def ask(self, text: str, conversation_id: str | None = None) -> str:
        """Posts a message and returns the text of the last message of its run. Raises `RunFailedError` if it fails."""
        return self._loop.call(self._client.ask(text, conversation_id))

    def post_event(self, event: EventEnvelope, *, idempotency_key: str | None = None) -> EventAccepted:
        """Posts an event and returns as soon as it is stored. Without an agent, `run_id` is None: see `hint`."""
        return self._loop.call(self._client.post_event(event, idempotency_key=idempotency_key))

    def stream(self, event: EventEnvelope, *, idempotency_key: str | None = None) -> SyncRunStream:
        """Events of the run of a posted event. Raises `NoRunError` without an agent, `StreamLostError` if it breaks."""
        return SyncRunStream(self._loop, self._client.stream(event, idempotency_key=idempotency_key))

    def follow(self, run_id: str, after: int = 0) -> SyncRunStream:
        """Events of a run after the sequence `after`, up to its terminal event."""
        return SyncRunStream(self._loop, self._client.follow(run_id, after))

    def runs(
        self,
        *,
        statuses: RunStatus | Iterable[RunStatus] | None = None,
        **filters: Unpack[RunFilters],
    ) -> Iterator[AgentRun]:
        """Runs of the workspace that match all filters, newest first."""
        return self._loop.iterate(self._client.runs(statuses=statuses, **filters))

    def run_counts(
        self, *, statuses: RunStatus | Iterable[RunStatus] | None = None, **filters: Unpack[RunFilters]
    ) -> CountsByStatus:
        """Number of runs of each status that match all filters of `runs`."""
        return self._loop.call(self._client.run_counts(statuses=statuses, **filters))

    def usage(
        self,
        *,
        since: int | None = None,
        until: int | None = None,
        group_by: UsageGroupBy = "agent",
        agent_id: str | None = None,
    ) -> UsageReport:
        """Calls, tokens and cost by day (UTC) and by agent, model, tool or knowledge base."""
        return self._loop.call(self._client.usage(since=since, until=until, group_by=group_by, agent_id=agent_id))

    def run(self, run_id: str) -> AgentRun:
        """Current state of a run. An unknown id raises `ApiError` 404."""
        return self._loop.call(self._client.run(run_id))

    def cancel(self, run_id: str) -> AgentRun:
        """Requests the cancellation of a run and returns its current state. `follow` shows when it ends."""
        return self._loop.call(self._client.cancel(run_id))

    def retry(self, run_id: str, *, after: int | None = None) -> AgentRun:
        """Runs the event of a failed, cancelled or timed-out run again and returns the new run.

        With `after` the new run begins after the result with this sequence; its runner must be resumable. A second
        call returns the same new run. Raises `ApiError` 409 if the run cannot be retried.
        """
        return self._loop.call(self._client.retry(run_id, after=after))

    def stream_link(self, run_id: str) -> RunStreamLink:
        """Link to the stream of a run, for a browser. It opens one stream, within a minute, and reads this run only."""
        return self._loop.call(self._client.stream_link(run_id))

    def conversations(self) -> Iterator[ConversationSummary]:
        """Conversations of the workspace, newest event first."""
        return self._loop.iterate(self._client.conversations())

    def history(
        self, conversation_id: str, *, bot_id: str | None = None, forward: bool = False
    ) -> Iterator[TranscriptItem]:
        """Messages of a conversation, newest first, or oldest first if `forward`."""
        return self._loop.iterate(self._client.history(conversation_id, bot_id=bot_id, forward=forward))

    def interactions(
        self, *, conversation_id: str | None = None, run_id: str | None = None, status: str | None = "open"
    ) -> Iterator[Interaction]:
        """Questions of runs, newest first: the open ones, or all with `status=None`."""
        found = self._client.interactions(conversation_id=conversation_id, run_id=run_id, status=status)
        return self._loop.iterate(found)

    def interaction(self, interaction_id: str) -> Interaction:
        """Question with the gateway's id: `metadata.interaction.id` of the event `action.requested`."""
        return self._loop.call(self._client.interaction(interaction_id))

    def answer(
        self, interaction: Interaction, action_id: str | None = None, values: Json | None = None
    ) -> EventAccepted | Interaction:
        """Answers a question. Returns an `EventAccepted` if the answer started a run of its own."""
        return self._loop.call(self._client.answer(interaction, action_id, values))

    def actions(self, *, run_id: str | None = None, status: str | None = "open") -> Iterator[PlatformAction]:
        """Platform actions of runs, newest first: the open ones, or all with `status=None`."""
        return self._loop.iterate(self._client.actions(run_id=run_id, status=status))

    def action(self, action_id: str) -> PlatformAction:
        """Platform action: `metadata.action.id` of the event `action.requested`."""
        return self._loop.call(self._client.action(action_id))

    def claim_action(
        self, action_id: str, *, lease_seconds: int | None = None, claim_token: str | None = None
    ) -> ClaimedAction:
        """Claims an open action: only this program performs it, within `lease_seconds` (1-3,600, by default 60)."""
        claim = self._client.claim_action(action_id, lease_seconds=lease_seconds, claim_token=claim_token)
        return self._loop.call(claim)

    def finish_action(
        self, claimed: ClaimedAction, output: Json | None = None, *, error: Json | None = None
    ) -> PlatformAction:
        """Reports the result of a claimed action: `output` of the platform, or `error` with `code` and `message`."""
        return self._loop.call(self._client.finish_action(claimed, output, error=error))

    def upload(
        self, content: bytes, name: str, mime_type: str = "application/octet-stream", *, expires_in: int | None = None
    ) -> ArtifactMetadata:
        """Uploads a file for an event: `message(text, files=(artifact_id,))`. It expires after `expires_in` seconds."""
        return self._loop.call(self._client.upload(content, name, mime_type, expires_in=expires_in))

    def download(self, artifact_id: str, *, max_bytes: int = 100 * 1024 * 1024) -> bytes:
        """Content of a file. Raises `RunnelError` if it is larger than `max_bytes`."""
        return self._loop.call(self._client.download(artifact_id, max_bytes=max_bytes))
