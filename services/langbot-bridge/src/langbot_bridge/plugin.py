"""Loads a plugin's directory as LangBot's own plugin process does."""

import dataclasses
import functools
import logging
import os
import sys
import typing
from pathlib import Path

import yaml

from . import compat, manifest
from .host_api import HostApi
from .payload import Payload, mapping

compat.install_older_names()
compat.accept_any_tool_result()

from langbot_plugin.api.definition.components.common.event_listener import EventListener  # noqa: E402
from langbot_plugin.api.definition.components.manifest import ComponentManifest  # noqa: E402
from langbot_plugin.api.definition.components.runner.runner import Runner  # noqa: E402
from langbot_plugin.api.definition.components.tool.tool import Tool  # noqa: E402
from langbot_plugin.api.definition.plugin import BasePlugin  # noqa: E402

from . import listeners  # noqa: E402

log = logging.getLogger(__name__)

_RUNNER_KINDS = ("Runner", "AgentRunner")
# In the order in which LangBot initialises them; other kinds have no use without LangBot's host.
_KINDS = ("EventListener", "Tool", *_RUNNER_KINDS)
_MANIFEST = "manifest.yaml"
_COMPONENT_FILES = 256


class LoadError(Exception):
    """The directory is no plugin that can be served. The message names the change to make."""


@dataclasses.dataclass(frozen=True)
class LoadedRunner:
    """A runner that can be executed."""

    manifest: Payload
    # An SDK `Runner` or an adapter with the same `invoke`.
    instance: typing.Any
    # The runner polls `run_get` for cancels, so a cancel gives it a grace period.
    interrupts: bool
    # The runner handles events and sends messages by the SDK's reply API.
    replies: bool
    # Values of its form that a configuration may leave out.
    defaults: Payload


@dataclasses.dataclass(frozen=True)
class LoadedTool:
    """A tool that can be called."""

    name: str
    description: str
    parameters: Payload
    instance: Tool


@dataclasses.dataclass
class Plugin:
    """A loaded plugin directory."""

    identity: str
    runners: dict[str, LoadedRunner]
    tools: dict[str, LoadedTool]


def own_identity(directory: Path) -> str:
    """`AUTHOR/NAME` of the plugin in a directory. Imports nothing."""
    meta = _plugin_file(directory)["metadata"]
    return f"{meta['author']}/{meta['name']}"


async def load(directory: Path, identities: list[str], host: HostApi, config: Payload) -> Plugin:
    """Imports and initialises the plugin. Changes the working directory and the import path of this process.

    `identities` are the names to serve it under; none means its own. Raises `LoadError`.
    """
    # The SDK resolves the paths of components from the working directory.
    os.chdir(directory)
    sys.path.insert(0, os.getcwd())
    document = _plugin_file(directory)
    meta = document["metadata"]
    names = identities or [f"{meta['author']}/{meta['name']}"]
    plugin = Plugin(names[0], {}, {})
    owner = await _owner(document, host, config)
    found = [_component(file, kind) for kind, file in _component_files(document)]
    components = [component for component in found if component is not None]
    for component in sorted(components, key=lambda one: _KINDS.index(one.kind)):
        await _add(plugin, component, owner, host, config, names, meta.get("version"))
    if not plugin.runners and not plugin.tools:
        raise LoadError(f"{directory} has no runner, event listener or tool: the bridge has nothing to serve")
    return plugin


async def _add(
    plugin: Plugin,
    component: ComponentManifest,
    owner: BasePlugin,
    host: HostApi,
    config: Payload,
    names: list[str],
    version: str | None,
) -> None:
    cls, name = component.get_python_component_class(), component.metadata.name
    wanted = {"Tool": Tool, "EventListener": EventListener}.get(component.kind, Runner)
    if not issubclass(cls, wanted):
        raise LoadError(f"{component.rel_path}: {cls.__name__} is no {wanted.__name__} of the SDK")
    instance = cls()
    instance.plugin = owner
    if isinstance(instance, Runner):
        instance.bind_runtime(plugin_runtime_handler=host, plugin_config=config, plugin_identity=names[0])
    await instance.initialize()
    if isinstance(instance, Tool):
        plugin.tools[name] = _tool(component, instance)
        return
    document = component.manifest
    make: typing.Callable[[str], LoadedRunner]
    if isinstance(instance, EventListener):
        if not instance.registered_handlers:
            log.info("%s handles no event, it is left out", component.rel_path)
            return
        make = functools.partial(_listener, document, host, instance, version)
    else:
        make = functools.partial(_runner, document, instance, version)
    for identity in names:
        _insert(plugin, make(identity))


def _insert(plugin: Plugin, runner: LoadedRunner) -> None:
    made = runner.manifest
    if made["id"] in plugin.runners:
        # A listener and a runner may share a name, ids must not.
        made = {**made, "id": f"{made['id']}-events", "name": f"{made['name']}-events"}
        first = plugin.runners[runner.manifest["id"]]
        if first.manifest["usages"] == ["event"] and runner.manifest["usages"] != ["event"]:
            plugin.runners[runner.manifest["id"]] = runner
            runner = first
            made = {**first.manifest, "id": made["id"], "name": made["name"]}
    runner = dataclasses.replace(runner, manifest=made)
    plugin.runners[made["id"]] = runner
    log.info("serving %s", made["id"])


def _runner(document: Payload, instance: Runner, version: str | None, identity: str) -> LoadedRunner:
    spec = mapping(document.get("spec"))
    if not spec.get("config") and (form := type(instance).get_config_schema()):
        document = {**document, "spec": {**spec, "config": form}}
    made = manifest.of_component(document, identity, version)
    return LoadedRunner(
        manifest=made,
        instance=instance,
        interrupts=bool(mapping(spec.get("capabilities")).get("interrupt")),
        replies="event" in made["usages"],
        defaults={
            item["name"]: item["default"]
            for item in made["config_schema"]
            if "name" in item and item.get("default") is not None
        },
    )


def _listener(
    document: Payload, host: HostApi, instance: EventListener, version: str | None, identity: str
) -> LoadedRunner:
    adapter = listeners.Listener(instance, host)
    made = manifest.of_listener(document, identity, version, adapter.patterns())
    return LoadedRunner(made, adapter, interrupts=False, replies=True, defaults={})


def _tool(component: ComponentManifest, instance: Tool) -> LoadedTool:
    spec = mapping(component.spec)
    described = component.metadata.description.en_US if component.metadata.description else ""
    return LoadedTool(
        name=component.metadata.name,
        description=str(spec.get("llm_prompt") or described),
        parameters={"type": "object", **mapping(spec.get("parameters"))},
        instance=instance,
    )


async def _owner(document: Payload, host: HostApi, config: Payload) -> BasePlugin:
    """The plugin itself: some start their own services in `initialize`."""
    if "execution" in document:
        made = ComponentManifest(owner="builtin", manifest=document, rel_path=_MANIFEST)
        instance: BasePlugin = made.get_python_component_class()()
    else:
        instance = BasePlugin()
    instance.config = config
    instance.plugin_runtime_handler = host
    await instance.initialize()
    return instance


def _component(file: str, kind: str) -> ComponentManifest | None:
    document = _yaml(Path(file))
    if not ComponentManifest.is_component_manifest(document) or document["kind"] != kind:
        return None
    # A listener without settings has an empty `spec:`, which YAML reads as null.
    document["spec"] = mapping(document["spec"])
    return ComponentManifest(owner="builtin", manifest=document, rel_path=file)


def _component_files(document: Payload) -> list[tuple[str, str]]:
    groups = mapping(mapping(document.get("spec")).get("components"))
    found: list[tuple[str, str]] = []
    for kind in _KINDS:
        group = mapping(groups.get(kind))
        found += [(kind, str(file)) for file in group.get("fromFiles") or []]
        for entry in group.get("fromDirs") or []:
            base, depth = Path(entry["path"]), int(entry.get("maxDepth", 1))
            files = sorted(base.rglob("*.y*ml"))
            found += [(kind, str(file)) for file in files if len(file.relative_to(base).parts) <= depth]
    if len(found) > _COMPONENT_FILES:
        raise LoadError(f"the plugin has more than {_COMPONENT_FILES} component files")
    return found


def _plugin_file(directory: Path) -> Payload:
    path = directory / _MANIFEST
    if not path.is_file():
        raise LoadError(f"{directory} is no plugin: it has no {_MANIFEST}")
    document = _yaml(path)
    meta = mapping(document.get("metadata"))
    if not meta.get("author") or not meta.get("name"):
        raise LoadError(f"{path} names no author or no name under metadata")
    return document


def _yaml(path: Path) -> Payload:
    try:
        return mapping(yaml.safe_load(path.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        raise LoadError(f"{path} is no YAML: {error}") from error
