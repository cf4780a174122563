"""LangBot's own SDK as the peer: reads what the gateway emits, writes what runners emit.

`check`: stdin is [[class, value]...]; the answer lists for each why the class refused it, which of its
fields the class does not know, and what the class made of it. `results`: the answer is a list of
results of every type, as a runner of this SDK dumps them. `query`: the answer is a pipeline's Query with
that id, as this SDK dumps it.
"""
import datetime
import json
import sys

import pydantic
from langbot_plugin.api.entities.builtin.pipeline.query import Query
from langbot_plugin.api.entities.builtin.platform import entities, events, message
from langbot_plugin.api.entities.builtin.provider.prompt import Prompt
from langbot_plugin.api.entities.builtin.provider.session import Session
from langbot_plugin.api.entities.builtin.provider.message import ContentElement, Message, MessageChunk
from langbot_plugin.api.entities.builtin import runner
from langbot_plugin.api.entities.builtin.runner import RunnerResult


def unknown_fields(value, model, path=""):
    """The paths of fields that the class would silently drop."""
    if isinstance(model, pydantic.BaseModel):
        for name, inner in value.items():
            if name not in type(model).model_fields:
                yield f"{path}/{name}"
            else:
                yield from unknown_fields(inner, getattr(model, name), f"{path}/{name}")
    elif isinstance(model, list):
        for inner, item in zip(value, model):
            yield from unknown_fields(inner, item, f"{path}/-")


def check(kind, value):
    try:
        # Strict: a number in quotes or a float for an int is no match.
        model = getattr(runner, kind).model_validate_json(json.dumps(value), strict=True)
    except pydantic.ValidationError as error:
        return {"refused": str(error), "unknown": [], "read": None}
    unknown = sorted(set(unknown_fields(value, model)))
    return {"refused": None, "unknown": unknown, "read": model.model_dump(mode="json")}


def results(run_id):
    call = {"id": "call-1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    parts = [ContentElement.from_text("hello big "), ContentElement.from_image_url("https://x.test/a.png"),
             ContentElement.from_file_url("https://x.test/a.pdf", "a.pdf"), ContentElement.from_text("world")]
    question = {"interaction_id": "i-1", "title": "Sure?", "fallback_text": "Sure? yes or no",
                "actions": [{"id": "yes", "label": "Yes"}]}
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, "cached_tokens": 1}
    return [
        RunnerResult.message_delta(run_id, MessageChunk(role="assistant", content="hello ")),
        RunnerResult.message_delta(run_id, MessageChunk(role="assistant", content="big ", all_content="hello big ")),
        RunnerResult.message_delta(run_id, MessageChunk(role="assistant", tool_calls=[call])),
        RunnerResult.message_delta(run_id, MessageChunk(role="assistant", content="", is_final=True, msg_sequence=3)),
        RunnerResult.tool_call_started(run_id, "call-1", "search", {"query": "x"}),
        RunnerResult.tool_call_completed(run_id, "call-1", "search", result={"found": [1, None]}),
        RunnerResult.tool_call_completed(run_id, "call-2", "search", error="timed out"),
        RunnerResult.state_updated(run_id, "external.conversation_id", "abc", "conversation"),
        RunnerResult.state_updated(run_id, "memory.nothing", None, "actor"),
        RunnerResult.action_requested(run_id, "platform.react", target={"chat": "c-7"}),
        RunnerResult.interaction_requested(run_id, question),
        RunnerResult(run_id=run_id, type="processor.log", data={"text": "note", "level": "info"}),
        RunnerResult.message_completed(run_id, Message(role="assistant", content=parts), file_ids=["f-1"]),
        RunnerResult.message_completed(run_id, Message(role="assistant", content="hello big world")),
        RunnerResult.run_completed(run_id, Message(role="assistant", content="hello big world"), usage=usage),
    ]


def query(query_id):
    group = entities.Group(id=42, name="Team", permission="MEMBER")
    sender = entities.GroupMember(id=77, member_name="Ada", permission="MEMBER", group=group)
    chain = message.MessageChain([
        message.Source(id="m-1", time=datetime.datetime.fromtimestamp(1795291200)),
        message.Quote(id=5, sender_id=6, origin=message.MessageChain([message.Plain(text="before")])),
        message.At(target=9, display="Bob"), message.Plain(text=" see"),
        message.Image(base64="data:image/png;base64,AAAA"), message.File(id="f", name="a.pdf", url="https://x.test/a.pdf"),
        message.Voice(voice_id="v", path="/tmp/v.amr", length=3), message.Face(face_id=3)])
    made = Query(
        query_id=query_id, launcher_type="group", launcher_id=42, sender_id=77, bot_uuid="bot-1",
        pipeline_uuid="pipe-1", pipeline_config={"ai": {}}, message_chain=chain,
        message_event=events.GroupMessage(sender=sender, message_chain=chain, time=1795291200.5),
        session=Session(launcher_type="group", launcher_id=42),
        prompt=Prompt(name="default", messages=[Message(role="system", content="Be brief.")]))
    made.set_variable("city", "Rome")
    made.set_variable("_bound", ["x"])
    return {**made.model_dump(mode="json"), "variables": made.get_variables()}


if sys.argv[1] == "query":
    answer = query(json.load(sys.stdin))
elif sys.argv[1] == "check":
    answer = [check(kind, value) for kind, value in json.load(sys.stdin)]
else:
    answer = [result.model_dump(mode="json") for result in results(json.load(sys.stdin))]
json.dump(answer, sys.stdout)
