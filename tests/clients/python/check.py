"""A client generated from the API document against a gateway: prints what it was told, typed."""
import json
import os
from collections.abc import Iterator
from http import HTTPStatus
from uuid import UUID

from runnel_gateway_client import AuthenticatedClient
from runnel_gateway_client.api.client import get_run, list_run_events, list_runs, post_event
from runnel_gateway_client.models import (
    AgentInput, AgentRun, AgentRunEvent, ErrorBody, EventAccepted, EventConversation, EventEnvelope,
    PageAgentRun, PageAgentRunEvent)

client = AuthenticatedClient(os.environ["RUNNEL_URL"], os.environ["RUNNEL_API_KEY"])


def envelope(event_id: str) -> EventEnvelope:
    return EventEnvelope(
        "message.received", event_id=event_id, conversation=EventConversation("c-7"),
        input_=AgentInput("hello big world"))


def stream(method: str, path: str, body: EventEnvelope | None = None, seen: int = 0) -> Iterator[AgentRunEvent]:
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(seen)}
    http = client.get_httpx_client()
    with http.stream(method, path, headers=headers, json=body and body.to_dict()) as response:
        assert response.status_code == HTTPStatus.OK, response.read()
        for line in response.iter_lines():
            if line.startswith("data:"):
                yield AgentRunEvent.from_dict(json.loads(line.removeprefix("data:")))


# Posts an event and reads its run from the same answer.
events = list(stream("POST", "/v1/events", envelope("python-1")))
run_id = events[0].run_id

# Posts another without waiting for its run.
accepted = post_event.sync(client=client, body=envelope("python-2"))
assert isinstance(accepted, EventAccepted), accepted

# Goes on after the second event, and reads all of them as a page.
rest = list(stream("GET", f"/v1/runs/{run_id}/events", seen=2))
page = list_run_events.sync(str(run_id), client=client)
assert isinstance(page, PageAgentRunEvent) and page.items == events, page

run = get_run.sync(str(run_id), client=client)
assert isinstance(run, AgentRun), run
runs = list_runs.sync(client=client, limit=1)
assert isinstance(runs, PageAgentRun), runs

missing = get_run.sync_detailed(str(UUID(int=0)), client=client)
error = missing.parsed
assert missing.status_code == HTTPStatus.NOT_FOUND and isinstance(error, ErrorBody), missing

print(json.dumps({
    "run_id": str(run_id), "events": [event.to_dict() for event in events],
    "rest": [event.to_dict() for event in rest], "run": run.to_dict(), "accepted": accepted.to_dict(),
    "runs": [run.to_dict() for run in runs.items], "error": error.to_dict()}))
