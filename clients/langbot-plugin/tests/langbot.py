"""LangBot's side: the plugin's component loaded by the SDK, and the contexts of its runs."""

import asyncio
import contextlib
import os
import typing
from pathlib import Path

import yaml
from langbot_plugin.api.definition.components.manifest import ComponentManifest
from langbot_plugin.api.definition.components.runner.runner import Runner
from langbot_plugin.api.entities.builtin.runner import RunnerContext, RunnerResult

PLUGIN = Path(__file__).parent.parent
_COMPONENT = "components/runner/default.yaml"
_SECONDS = 60


def component() -> ComponentManifest:
    document = yaml.safe_load((PLUGIN / _COMPONENT).read_text())
    return ComponentManifest(owner="builtin", manifest=document, rel_path=_COMPONENT)


PIPELINE = "0b8a3c10-0000-4000-8000-000000000001"


class Host:
    """LangBot's answers to the runner's calls."""

    pipeline: str | None = PIPELINE
    # Calls of the platform adapter: bot, method and parameters.
    platform: typing.ClassVar[list[tuple[str, str, dict]]] = []

    async def call_action(self, action: typing.Any, data: dict, *_options: object) -> dict:
        if action.value == "call_platform_api":
            self.platform.append((data["bot_uuid"], data["action"], data["params"]))
            if data["action"] == "edit_message":
                raise RuntimeError("edit_message is not supported by this adapter")
            return {"result": {"message_id": "p-1"}}
        assert action.value == "run_get"
        if self.pipeline is None:
            raise ConnectionError("LangBot does not answer")
        return {"run_id": data["target_run_id"], "status": "running", "agent_id": self.pipeline}


def runner(pipeline: str | None = PIPELINE) -> Runner:
    """The runner, as LangBot's plugin process makes it: from the plugin's directory."""
    before = os.getcwd()
    os.chdir(PLUGIN)
    try:
        made = component().get_python_component_class()()
    finally:
        os.chdir(before)
    host = Host()
    host.pipeline = pipeline
    made.bind_runtime(plugin_runtime_handler=host, plugin_config={}, plugin_identity="runnel/RunnelAgent")
    return made


def context(text: str, config: dict, **parts: typing.Any) -> RunnerContext:
    """A run of LangBot for a message. `parts` replace members."""
    made = {
        "run_id": "lb-run-1",
        "trigger": {"type": "message.received", "source": "platform"},
        "event": {
            "event_id": parts.pop("event_id", "m-1"),
            "event_type": "message.received",
            "source": "platform",
            "event_time": 1_795_291_200,
            "data": {"type": "message.received", "message_chain": [{"type": "Image", "base64": "AAAA"}]},
        },
        "conversation": {
            "conversation_id": parts.pop("conversation_id", "person_1"),
            "launcher_type": "person",
            "launcher_id": "1",
            "bot_id": "bot-1",
            "workspace_id": "w-1",
        },
        "actor": {"actor_type": "user", "actor_id": "1", "actor_name": "Ada"},
        "input": {"text": text, "contents": [{"type": "text", "text": text}]},
        "delivery": {"surface": "platform", "supports_streaming": True},
        "resources": {},
        "context": {"available_apis": {"run_get": True}},
        "runtime": {"langbot_version": "4.11.2"},
        "config": config,
        **parts,
    }
    return RunnerContext.model_validate(made)


def execute(ctx: RunnerContext, pipeline: str | None = PIPELINE) -> list[RunnerResult]:
    """All results of a run, as LangBot gets them. `pipeline` is the run's, or `None` where LangBot fails."""

    async def collect() -> list[RunnerResult]:
        async with asyncio.timeout(_SECONDS):
            return [result async for result in runner(pipeline).invoke(ctx)]

    found = asyncio.run(collect())
    assert found[-1].type in ("run.completed", "run.failed"), found
    return found


def execute_until(ctx: RunnerContext, kind: str) -> None:
    """Reads up to the first result of this type and stops the run there, as LangBot's cancel does."""

    async def read() -> None:
        async with asyncio.timeout(_SECONDS), contextlib.aclosing(runner().invoke(ctx)) as results:
            async for result in results:
                if result.type == kind:
                    return
        raise AssertionError(f"no {kind}")

    asyncio.run(read())


def texts(found: list[RunnerResult]) -> list[str]:
    return [result.data["chunk"]["content"] for result in found if result.type == "message.delta"]


def messages(found: list[RunnerResult]) -> list[typing.Any]:
    return [result.data["message"]["content"] for result in found if result.type == "message.completed"]


def failure(found: list[RunnerResult]) -> str:
    assert found[-1].type == "run.failed", found
    return str(found[-1].data["code"])
