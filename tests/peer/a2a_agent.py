"""An A2A agent on the official SDK. Its first line of output names its address.

`ask` asks for a city and continues with it, `wait` works until it is canceled, `canceled` counts the tasks that were
canceled; any other text is answered in two pieces with its number in the context.
"""

import asyncio
import collections
import socket
import sys

import uvicorn
from a2a.helpers.proto_helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, TaskState
from starlette.applications import Starlette


class Executor(AgentExecutor):
    def __init__(self):
        self.turns = collections.Counter()
        self.canceled = 0

    async def execute(self, context, queue):
        text = context.get_user_input()
        resumed = context.current_task is not None
        task = context.current_task or new_task_from_user_message(context.message)
        if not resumed:
            await queue.enqueue_event(task)
        updater = TaskUpdater(queue, task.id, task.context_id)
        await updater.start_work(new_text_message("I work."))
        if text == "wait":
            await asyncio.Event().wait()
        elif text == "ask":
            await updater.requires_input(new_text_message("Which city?"))
            return
        elif text == "canceled":
            pieces = [f"canceled: {self.canceled}"]
        elif resumed:
            pieces = ["To ", text]
        else:
            self.turns[task.context_id] += 1
            pieces = [f"{self.turns[task.context_id]}: ", text]
        for at, piece in enumerate(pieces):
            last = at == len(pieces) - 1
            await updater.add_artifact([new_text_part(piece)], artifact_id="answer", append=at > 0, last_chunk=last)
        await updater.complete()

    async def cancel(self, context, queue):
        self.canceled += 1
        updater = TaskUpdater(queue, context.task_id, context.context_id)
        await updater.update_status(TaskState.TASK_STATE_CANCELED)


def main():
    binding = sys.argv[1]
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    address = {"JSONRPC": f"{url}/rpc", "HTTP+JSON": f"{url}/rest"}[binding]
    card = AgentCard(
        name="peer",
        description="Counts messages.",
        version="1.0.0",
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        capabilities=AgentCapabilities(streaming=True),
        skills=[AgentSkill(id="count", name="Count", description="Counts messages.", tags=["count"])],
        supported_interfaces=[AgentInterface(protocol_binding=binding, protocol_version="1.0", url=address)],
    )
    handler = DefaultRequestHandler(agent_executor=Executor(), task_store=InMemoryTaskStore(), agent_card=card)
    routes = [
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, "/rpc"),
        *create_rest_routes(handler, path_prefix="/rest"),
    ]
    print(f"listening on {url}", flush=True)
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="error"))
    asyncio.run(server.serve(sockets=[listener]))


main()
