"""An AG-UI agent on the official models and encoder. Its first line of output names its address.

`ask` interrupts the run for an approval and continues with it, `fail` ends in an error; any other text is answered in
two pieces with the number of messages that came, after a thought and a tool call. The state counts the runs of
the thread.
"""

import asyncio
import json
import socket

import uvicorn
from ag_ui.core import (
    Interrupt,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunStartedEvent,
    StateSnapshotEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)
from ag_ui.encoder import EventEncoder
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route


def text_events(*pieces):
    yield TextMessageStartEvent(message_id="m", role="assistant")
    for piece in pieces:
        yield TextMessageContentEvent(message_id="m", delta=piece)
    yield TextMessageEndEvent(message_id="m")


def events(run_input):
    ids = {"thread_id": run_input.thread_id, "run_id": run_input.run_id}
    yield RunStartedEvent(**ids)
    text = run_input.messages[-1].content if run_input.messages else ""
    text = text if isinstance(text, str) else "".join(part.text for part in text)
    if run_input.resume:
        entry = run_input.resume[0]
        yield from text_events(f"{entry.interrupt_id} {entry.status}: ", json.dumps(entry.payload))
    elif text == "ask":
        interrupt = Interrupt(id="approval-1", reason="confirmation", message="Shall I book?")
        yield RunFinishedEvent(**ids, outcome=RunFinishedInterruptOutcome(interrupts=[interrupt]))
        return
    elif text == "fail":
        yield RunErrorEvent(message="the agent has failed", code="no_seats")
        return
    else:
        runs = (run_input.state or {}).get("runs", 0) + 1
        yield StateSnapshotEvent(snapshot={"runs": runs})
        yield ReasoningMessageStartEvent(message_id="r", role="reasoning")
        yield ReasoningMessageContentEvent(message_id="r", delta="I count.")
        yield ReasoningMessageEndEvent(message_id="r")
        yield ToolCallStartEvent(tool_call_id="t", tool_call_name="count")
        yield ToolCallArgsEvent(tool_call_id="t", delta="{}")
        yield ToolCallEndEvent(tool_call_id="t")
        yield ToolCallResultEvent(message_id="tr", tool_call_id="t", content=str(len(run_input.messages)))
        yield from text_events(f"run {runs}, ", f"{len(run_input.messages)} messages")
    yield RunFinishedEvent(**ids)


async def run(request):
    run_input = RunAgentInput.model_validate_json(await request.body())
    encoder = EventEncoder(accept=request.headers.get("accept"))

    async def stream():
        for event in events(run_input):
            yield encoder.encode(event)

    return StreamingResponse(stream(), media_type=encoder.get_content_type())


def main():
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    app = Starlette(routes=[Route("/agent", run, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    asyncio.run(server.serve(sockets=[listener]))


main()
