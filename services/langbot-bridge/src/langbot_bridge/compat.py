"""Adjusts the SDK for plugins and hosts that it does not expect.

Plugins of older SDKs import names that were renamed since: `agent_runner` is `runner`, `AgentRun…` is `Runner…`.
"""

import importlib
import pkgutil
import sys
import typing

_CLASSES = {
    "AgentRunContext": "RunnerContext",
    "AgentRunResult": "RunnerResult",
    "AgentRunResultType": "RunnerResultType",
    "AgentRunnerCapabilities": "RunnerCapabilities",
    "AgentRunnerManifest": "RunnerManifest",
    "AgentRunnerPermissions": "RunnerPermissions",
    "AgentRunAPIProxy": "RunnerAPIProxy",
    "AgentRunAdminAPIProxy": "RunnerAdminAPIProxy",
    "AgentRunContextAPIMixin": "RunnerContextAPIMixin",
    "AgentRunner": "Runner",
}
_PACKAGES = {
    "langbot_plugin.api.entities.builtin.agent_runner": "langbot_plugin.api.entities.builtin.runner",
    "langbot_plugin.api.proxies.agent_run": "langbot_plugin.api.proxies.runner",
    "langbot_plugin.api.definition.components.agent_runner": "langbot_plugin.api.definition.components.runner",
}


def install_older_names() -> None:
    """Makes the older module and class names importable. Does nothing a second time."""
    for older, newer in _PACKAGES.items():
        if older in sys.modules:
            continue
        package = importlib.import_module(newer)
        modules = {older: package}
        for found in pkgutil.iter_modules(package.__path__):
            modules[f"{older}.{found.name}"] = importlib.import_module(f"{newer}.{found.name}")
        for name, module in modules.items():
            for alias, real in _CLASSES.items():
                if hasattr(module, real) and not hasattr(module, alias):
                    setattr(module, alias, getattr(module, real))
            sys.modules[name] = module
        parent, _, leaf = older.rpartition(".")
        setattr(importlib.import_module(parent), leaf, package)


def accept_any_tool_result() -> None:
    """Lets the SDK trace a tool's result that is no object, such as the text of an MCP tool.

    The SDK traces each `ctx.call_tool` as a result of the run, and the payload of a result must be an object. The
    caller still gets the result unchanged; only the trace wraps it as `{"result": …}`.
    """
    from langbot_plugin.api.entities.builtin.runner import RunnerResult

    strict = RunnerResult.tool_call_completed
    if getattr(strict, "takes_any_result", False):
        return

    def tool_call_completed(
        run_id: str,
        tool_call_id: str,
        tool_name: str,
        result: typing.Any = None,
        error: str | None = None,
        **rest: typing.Any,
    ) -> typing.Any:
        made = result if result is None or isinstance(result, dict) else {"result": result}
        return strict(run_id, tool_call_id, tool_name, made, error, **rest)

    tool_call_completed.takes_any_result = True  # type: ignore[attr-defined]
    RunnerResult.tool_call_completed = staticmethod(tool_call_completed)
