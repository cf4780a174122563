"""The official A2A client with an agent of the gateway: reads {"url", "key", "binding"} and prints what it got.

The runner answers in this order: two talks, a run that waits for the next one, a question that waits for the next one,
and a run that never ends.
"""

import asyncio
import json
import sys
import uuid

import httpx
from a2a.client import A2ACardResolver, A2AClientError, ClientConfig, ClientFactory
from a2a.types import (
    CancelTaskRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskState,
)
from a2a.utils.errors import A2AError


def request(text, **more):
    message = Message(message_id=str(uuid.uuid4()), role=Role.ROLE_USER, parts=[Part(text=text)], **more)
    return SendMessageRequest(message=message)


def text_of(artifacts):
    texts = ["".join(part.text for part in artifact.parts) for artifact in artifacts.values()]
    return "\n\n".join(texts)


class Answer:
    """What a stream has shown so far."""

    def __init__(self):
        self.kinds, self.states, self.artifacts, self.task = [], [], {}, None

    def read(self, event):
        kind = event.WhichOneof("payload")
        if self.kinds[-1:] != [kind]:
            self.kinds.append(kind)
        if kind == "task":
            self.task = event.task
            self.states.append(TaskState.Name(event.task.status.state))
            self.artifacts.update({artifact.artifact_id: artifact for artifact in event.task.artifacts})
        elif kind == "status_update":
            self.states.append(TaskState.Name(event.status_update.status.state))
        elif kind == "artifact_update":
            update = event.artifact_update
            if update.append:
                self.artifacts[update.artifact.artifact_id].parts.extend(update.artifact.parts)
            else:
                self.artifacts[update.artifact.artifact_id] = update.artifact
        return kind


async def read_all(stream, answer=None, after_task=None):
    answer = answer or Answer()
    async for event in stream:
        if answer.read(event) == "task" and after_task:
            await after_task()
    return answer


async def refused(call):
    try:
        await call
    except (A2AError, A2AClientError) as error:
        return type(error).__name__


async def main(given):
    http = httpx.AsyncClient(headers={"Authorization": f"Bearer {given['key']}"}, timeout=30)
    card = await A2ACardResolver(http, f"{given['url']}/faces/a2a/main").get_agent_card()
    bindings = [given["binding"]]
    config = ClientConfig(httpx_client=http, supported_protocol_bindings=bindings)
    client = ClientFactory(config).create(card)
    config = ClientConfig(httpx_client=http, supported_protocol_bindings=bindings, streaming=False)
    blocking = ClientFactory(config).create(card)
    got = {"card": [card.name, [one.protocol_binding for one in card.supported_interfaces], card.capabilities.streaming]}

    talk = await read_all(client.send_message(request("a table")))
    got["talk"] = [text_of(talk.artifacts), talk.kinds, talk.states]
    once = await read_all(blocking.send_message(request("a table")))
    got["once"] = [text_of(once.artifacts), once.states]
    task = await client.get_task(GetTaskRequest(id=talk.task.id))
    artifacts = {artifact.artifact_id: artifact for artifact in task.artifacts}
    got["task"] = [text_of(artifacts), TaskState.Name(task.status.state), task.context_id == talk.task.context_id]

    async def proceed():
        await read_all(blocking.send_message(request("go")))

    cut = Answer()
    stream = client.send_message(request("cut"))
    async for event in stream:
        if cut.read(event) == "artifact_update":
            break
    await stream.aclose()
    resumed = await read_all(client.subscribe(SubscribeToTaskRequest(id=cut.task.id)), after_task=proceed)
    got["cut"] = [text_of(cut.artifacts), text_of(resumed.artifacts), resumed.states[-1]]

    paused = await read_all(client.send_message(request("book")))
    answer = request("a", task_id=paused.task.id, context_id=paused.task.context_id)
    answered = await read_all(client.send_message(answer), after_task=proceed)
    got["paused"] = paused.states
    got["answered"] = [text_of(answered.artifacts), answered.states[-1], answered.task.id == paused.task.id]

    held = Answer()
    async for event in client.send_message(request("hold")):
        if held.read(event) == "artifact_update":
            break
    canceled = await client.cancel_task(CancelTaskRequest(id=held.task.id))
    got["canceled"] = TaskState.Name(canceled.status.state)

    push = GetTaskPushNotificationConfigRequest(task_id=talk.task.id, id="1")
    got["refused"] = [
        await refused(client.get_task(GetTaskRequest(id=str(uuid.uuid4())))),
        await refused(client.cancel_task(CancelTaskRequest(id=talk.task.id))),
        await refused(client.get_task_push_notification_config(push)),
        await refused(read_all(client.subscribe(SubscribeToTaskRequest(id=talk.task.id)))),
    ]
    absent = A2ACardResolver(http, f"{given['url']}/faces/a2a/absent").get_agent_card()
    got["absent"] = await refused(absent)
    json.dump(got, sys.stdout)


asyncio.run(main(json.load(sys.stdin)))
