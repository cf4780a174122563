import asyncio
import json
import os
from pathlib import Path

# The name of older SDKs.
from langbot_plugin.api.definition.components.agent_runner.runner import AgentRunner
from langbot_plugin.api.entities.builtin.agent_runner import AgentRunContext, AgentRunResult
from langbot_plugin.api.entities.builtin.platform.message import MessageChain, Plain
from langbot_plugin.api.entities.builtin.provider.message import ContentElement, Message, MessageChunk
from langbot_plugin.api.entities.builtin.resource.tool import LLMTool
from langbot_plugin.api.entities.builtin.runner import InteractionAction, InteractionRequest
from langbot_plugin.api.entities.builtin.runner.errors import AgentAPIException
from langbot_plugin.api.proxies.runner.common import PermissionDeniedError

PICTURE = "data:image/png;base64," + "iVBORw0KGgo" + "A" * 99_997


def delta(ctx, text, **fields):
    return AgentRunResult.message_delta(ctx.run_id, MessageChunk(role="assistant", content=text, **fields))


def message(ctx, content):
    return AgentRunResult.message_completed(ctx.run_id, Message(role="assistant", content=content))


async def collect(stream):
    return [item async for item in stream]


async def reply_stream(api):
    async with api.reply_stream() as stream:
        await stream.update("x")


def calls(ctx):
    """Every public call of the proxy, by name."""
    api, ask = ctx.api, [Message(role="user", content="hello")]
    chain = MessageChain([Plain(text="x")])
    function = LLMTool(name="f", human_desc="f", description="f", parameters={"type": "object"}, func=lambda: None)
    return {
        "get_prompt": lambda: api.get_prompt(),
        "get_langbot_version": lambda: api.get_langbot_version(),
        "get_llm_models": lambda: api.get_llm_models(),
        "count_tokens": lambda: api.count_tokens("small", ask, [function], {"temperature": 0}),
        "invoke_llm": lambda: api.invoke_llm("small", ask, remove_think=True, reasoning_level="low"),
        "invoke_llm_with_usage": lambda: api.invoke_llm_with_usage("small", ask, [function]),
        "invoke_llm_stream": lambda: collect(api.invoke_llm_stream("small", ask)),
        "invoke_llm_stream_events": lambda: collect(api.invoke_llm_stream_events("small", ask)),
        "invoke_rerank": lambda: api.invoke_rerank("ranker", "a", ["a", "b"], top_k=1),
        "invoke_embedding": lambda: api.invoke_embedding("embedder", ["a"]),
        "list_tools": lambda: api.list_tools(),
        "get_tool_detail": lambda: api.get_tool_detail("get_current_time"),
        "call_tool": lambda: api.call_tool("get_current_time", {}),
        "list_knowledge_bases": lambda: api.list_knowledge_bases(),
        "retrieve_knowledge": lambda: api.retrieve_knowledge("notes", "cheese", 3),
        "set_plugin_storage": lambda: api.set_plugin_storage("a/b.c", b"\0\1"),
        "get_plugin_storage": lambda: api.get_plugin_storage("a/b.c"),
        "get_plugin_storage_keys": lambda: api.get_plugin_storage_keys(),
        "delete_plugin_storage": lambda: api.delete_plugin_storage("a/b.c"),
        "set_workspace_storage": lambda: api.set_workspace_storage("k", b"w"),
        "get_workspace_storage": lambda: api.get_workspace_storage("k"),
        "get_workspace_storage_keys": lambda: api.get_workspace_storage_keys(),
        "delete_workspace_storage": lambda: api.delete_workspace_storage("k"),
        "state_set": lambda: api.state_set("conversation", "probe.a", {"n": 1}),
        "state_get": lambda: api.state_get("conversation", "probe.a"),
        "state_list": lambda: api.state_list("conversation", prefix="probe."),
        "state_delete": lambda: api.state_delete("conversation", "probe.a"),
        "history_page": lambda: api.history_page(limit=5, include_attachments=True),
        "history_search": lambda: api.history_search("hello"),
        "event_get": lambda: api.event_get(ctx.event.event_id),
        "event_page": lambda: api.event_page(event_types=["message.received"]),
        "steering_pull": lambda: api.steering_pull(),
        "run_get": lambda: api.run_get(),
        "run_list": lambda: api.run_list(statuses=["running"]),
        "run_events_page": lambda: api.run_events_page(limit=2),
        "run_append_result": lambda: api.run_append_result(
            AgentRunResult(run_id=ctx.run_id, type="processor.log", data={"text": "appended", "level": "info"})
        ),
        "run_finalize": lambda: api.run_finalize(status="completed"),
        "call_platform_api": lambda: api.call_platform_api("bot", "get_group_info"),
        "send_message": lambda: api.send_message("bot", "person", "1", chain),
        "reply_message": lambda: api.reply_message(chain),
        "reply_stream": lambda: reply_stream(api),
        "reply_files": lambda: api.reply_files(["f"]),
        "get_box_status": lambda: api.get_box_status(),
        "list_boxes": lambda: api.list_boxes(),
        "acquire_box": lambda: api.acquire_box("k"),
        "bind_box": lambda: api.bind_box("b"),
        "import_box_attachments": lambda: api.import_box_attachments(),
        "export_box_files": lambda: api.export_box_files(["/a"]),
        # Last: it requests the end of the run.
        "run_cancel": lambda: api.run_cancel(reason="probe"),
    }


def plain(value):
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.model_dump(mode="json", exclude_none=True) if hasattr(value, "model_dump") else value


def processes_with(pattern):
    shown = []
    for file in Path("/proc").glob("[0-9]*/*"):
        if file.name in ("environ", "cmdline"):
            try:
                if pattern in file.read_bytes():
                    shown.append(str(file))
            except OSError:
                continue
    return shown


async def outcome(call):
    try:
        return {"ok": plain(await call())}
    except AgentAPIException as error:
        return {"api_error": error.error.code, "details": error.error.details}
    except PermissionDeniedError as error:
        return {"denied": str(error)}


class ProbeRunner(AgentRunner):
    async def run(self, ctx: AgentRunContext):
        word, _, rest = ctx.input.to_text().partition(" ")
        async for result in getattr(self, word)(ctx, rest):
            yield result

    async def echo(self, ctx, rest):
        assert self.plugin.is_ready
        text = ""
        for word in rest.split():
            text = f"{text} {word}".strip()
            yield delta(ctx, text)
        yield message(ctx, text)

    async def calls(self, ctx, rest):
        names = rest.split()
        found = {name: await outcome(call) for name, call in calls(ctx).items() if not names or name in names}
        yield message(ctx, json.dumps(found))

    async def call_names(self, ctx, _rest):
        api = ctx.api._api
        offered = [name for name in dir(api) if not name.startswith("_") and callable(getattr(api, name))]
        without_io = {"get_allowed_models", "get_allowed_tools", "get_allowed_knowledge_bases"}
        yield message(ctx, json.dumps([sorted(set(offered) - without_io), sorted(calls(ctx))]))

    async def wait(self, ctx, _rest):
        yield delta(ctx, "waiting")
        await asyncio.Event().wait()

    async def stubborn(self, ctx, _rest):
        yield delta(ctx, "waiting")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            yield AgentRunResult.run_failed(ctx.run_id, "my own end", "probe.ended")

    async def steer(self, ctx, _rest):
        yield delta(ctx, "ready")
        items = []
        while not items:
            items = (await ctx.steering_pull()).items
            await asyncio.sleep(0.05)
        yield message(ctx, " | ".join(item.input.to_text() for item in items))

    async def answers(self, ctx, _rest):
        yield delta(ctx, "the first")
        items = []
        while not items:
            items = (await ctx.steering_pull()).items
            await asyncio.sleep(0.05)
        yield delta(ctx, "the first answer", is_final=True)
        text = f"the answer to {items[0].input.to_text()}"
        yield delta(ctx, text[:10])
        yield delta(ctx, text, is_final=True)

    async def ask_model(self, ctx, _rest):
        try:
            yield message(ctx, (await ctx.api.invoke_llm("small", [Message(role="user", content="x")])).content)
        except AgentAPIException as error:
            yield AgentRunResult.run_failed(ctx.run_id, str(error), "runner.llm_error")

    async def picture(self, ctx, _rest):
        parts = [ContentElement.from_text("see"), ContentElement.from_image_base64(PICTURE)]
        yield message(ctx, parts)

    async def given(self, ctx, _rest):
        yield message(ctx, json.dumps(ctx.input.model_dump(mode="json", exclude_none=True))[:2000])

    async def sizes(self, ctx, _rest):
        contents = [len(part.image_base64 or part.file_base64 or "") for part in ctx.input.contents]
        attached = [(item.source, item.name, len(item.content or "")) for item in ctx.input.attachments]
        yield message(ctx, json.dumps([contents, attached]))

    async def state(self, ctx, _rest):
        count = ctx.state.conversation.get("probe.count", 0) + 1
        yield AgentRunResult.state_updated(ctx.run_id, "probe.count", count, "conversation")
        yield AgentRunResult.state_updated(ctx.run_id, "probe.count", count, "subject")
        yield message(ctx, str(count))

    async def config(self, ctx, _rest):
        yield message(ctx, json.dumps(ctx.config, sort_keys=True))

    async def environment(self, ctx, rest):
        yield message(ctx, str(os.environ.get(rest)))

    async def peek(self, ctx, rest):
        """Which processes show this text in a file of /proc, and what of the bridge can be opened."""
        shown = await asyncio.to_thread(processes_with, rest.encode())
        # Root may read any process; containers take these rights from it.
        root = ["setpriv", "--bounding-set=-all"] if os.getuid() == 0 else []
        openable = []
        for name in ("environ", "mem", "maps", "fd/0"):
            command = [*root, "head", "-c", "1", f"/proc/{os.getppid()}/{name}"]
            process = await asyncio.create_subprocess_exec(*command, stdout=-3, stderr=asyncio.subprocess.PIPE)
            _, error = await process.communicate()
            if b"ermission denied" not in error:
                openable.append(f"{name}: {error.decode()}")
        yield message(ctx, json.dumps([shown, openable]))

    async def tool(self, ctx, rest):
        yield message(ctx, json.dumps(await ctx.api.call_tool(rest, {"a": 2, "b": 3})))

    async def ask(self, ctx, _rest):
        action = InteractionAction(id="yes", label="Yes")
        question = InteractionRequest(interaction_id="sure", title="Sure?", actions=[action], fallback_text="Sure?")
        yield AgentRunResult.interaction_requested(ctx.run_id, question)

    async def raises(self, ctx, _rest):
        yield delta(ctx, "so far")
        raise RuntimeError("broken on purpose")

    async def foreign(self, ctx, _rest):
        yield AgentRunResult.run_completed("another-run")

    async def long(self, ctx, rest):
        yield message(ctx, "ü" * int(rest))

    async def long_result(self, ctx, rest):
        yield AgentRunResult.tool_call_completed(ctx.run_id, "c-1", "t", result={"text": "x" * int(rest)})
        yield AgentRunResult(run_id=ctx.run_id, type="x.probe", data={"text": "x" * int(rest)})

    async def deadline(self, ctx, _rest):
        yield message(ctx, json.dumps(ctx.runtime.deadline_at))

    async def die(self, ctx, _rest):
        yield delta(ctx, "dying")
        await asyncio.sleep(0)
        os._exit(7)


class PoliteRunner(AgentRunner):
    async def run(self, ctx):
        yield delta(ctx, "polling")
        while (await ctx.run_get()).cancel_requested_at is None:
            await asyncio.sleep(0.02)
        yield message(ctx, "ended by myself")
        yield AgentRunResult.run_failed(ctx.run_id, "cancelled", "cancelled")


class ConformingRunner(ProbeRunner):
    """Echoes its input, slowly enough to be cancelled."""

    async def run(self, ctx):
        text = ""
        for word in ctx.input.to_text().split():
            text = f"{text} {word}".strip()
            yield delta(ctx, text)
            await asyncio.sleep(0.01)
        yield message(ctx, text)
