"""A client generated from the API document by openapi-python-client, against a gateway: prints the typed responses."""
import json
import os
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any
from uuid import UUID

from httpx_sse import connect_sse
from runnel_gateway_client import AuthenticatedClient
from runnel_gateway_client.api.client import (
    get_run, list_run_events, list_runs, post_event, stream_event, stream_run_events)
from runnel_gateway_client.models import (
    AgentInput, AgentRun, ErrorBody, EventAccepted, EventConversation, EventEnvelope, MessageDeltaEvent,
    PageAgentRun, PageAgentRunEvent, RunCompletedEvent)

client = AuthenticatedClient(os.environ["RUNNEL_URL"], os.environ["RUNNEL_API_KEY"])


def envelope(event_id: str) -> EventEnvelope:
    return EventEnvelope(
        "message.received", event_id=event_id, conversation=EventConversation("c-7"),
        input_=AgentInput("hello big world"))


def stream(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a streaming operation, live: the generated function would wait for the end of the stream."""
    with connect_sse(client.get_httpx_client(), **request) as source:
        source.response.raise_for_status()
        for event in source.iter_sse():
            if event.data:
                yield event.json()


# Posts an event and reads its run from the same answer.
events = list(stream(stream_event._get_kwargs(body=envelope("python-1"))))
run_id = events[0]["run_id"]

# Posts another without waiting for its run.
accepted = post_event.sync(client=client, body=envelope("python-2"))
assert isinstance(accepted, EventAccepted), accepted

# Resumes after the second event, and reads all of them as a page.
rest = list(stream(stream_run_events._get_kwargs(run_id, last_event_id="2")))
page = list_run_events.sync(run_id, client=client)
assert isinstance(page, PageAgentRunEvent), page
assert [event.to_dict() for event in page.items] == events, page

# The class of an event follows from its type.
deltas = [event.data.chunk.content for event in page.items if isinstance(event, MessageDeltaEvent)]
text = "".join(delta for delta in deltas if isinstance(delta, str))
assert isinstance(page.items[-1], RunCompletedEvent), page.items[-1]

run = get_run.sync(run_id, client=client)
assert isinstance(run, AgentRun), run
runs = list_runs.sync(client=client, limit=1)
assert isinstance(runs, PageAgentRun), runs

missing = get_run.sync_detailed(str(UUID(int=0)), client=client)
error = missing.parsed
assert missing.status_code == HTTPStatus.NOT_FOUND and isinstance(error, ErrorBody), missing

print(json.dumps({
    "run_id": run_id, "text": text, "events": events, "rest": rest, "run": run.to_dict(),
    "accepted": accepted.to_dict(), "runs": [run.to_dict() for run in runs.items], "error": error.to_dict()}))
