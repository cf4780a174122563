"""The manifest of a plugin's component, as the runner protocol has it."""

import logging
import re
import typing

from .payload import Payload, mapping

log = logging.getLogger(__name__)

_CAPABILITIES = (
    "streaming",
    "tool_calling",
    "knowledge_retrieval",
    "multimodal_input",
    "event_context",
    "platform_api",
    "stateful_session",
    "self_managed_context",
    "skill_authoring",
    "steering",
    "interactions",
)
_PERMISSIONS = {
    "models": ("invoke", "stream", "rerank", "count_tokens"),
    "tools": ("detail", "call"),
    "knowledge_bases": ("list", "retrieve"),
    "history": ("page", "search"),
    "events": ("get", "page"),
    "storage": ("plugin", "workspace"),
    "state": ("conversation", "actor", "subject", "runner", "binding"),
    "interactions": ("request",),
}
_USAGES = ("agent", "event")
_ID_PART = re.compile(r"[^/\s\x00-\x1f]+")
_ID_LENGTH = 255


def runner_id(identity: str, name: str) -> str:
    """`plugin:AUTHOR/NAME/RUNNER`, as LangBot forms it. Raises `ValueError` if a part does not fit."""
    parts = [*identity.split("/"), name]
    made = f"plugin:{identity}/{name}"
    if len(parts) != 3 or not all(map(_ID_PART.fullmatch, parts)) or len(made) > _ID_LENGTH:
        raise ValueError(f"{made} is no runner id: it needs an author, a plugin and a runner, without spaces")
    return made


def of_component(component: Payload, identity: str, version: str | None) -> Payload:
    """The manifest of a runner component (the content of its YAML file).

    Names that the protocol does not know are left out with a warning. `interrupt` and `resumable` are always true: the
    bridge stops any runner, and holds its results. Artifacts are requested, since the bridge reads and uploads files in
    its name. State is requested, since LangBot grants it without a permission.
    """
    spec, name = mapping(component.get("spec")), component["metadata"]["name"]
    capabilities = {key: bool(value) for key, value in mapping(spec.get("capabilities")).items()}
    permissions = _permissions(mapping(spec.get("permissions")), name)
    made: Payload = {
        **_head(component, runner_id(identity, name), version),
        "usages": [usage for usage in spec.get("usages") or ["agent"] if usage in _USAGES],
        "capabilities": {
            **{key: capabilities[key] for key in _CAPABILITIES if key in capabilities},
            "interrupt": True,
            "resumable": True,
        },
        "permissions": {
            **permissions,
            "artifacts": ["metadata", "read", "create"],
            "state": list(_PERMISSIONS["state"]),
        },
        "config_schema": [item for item in spec.get("config") or [] if isinstance(item, dict)],
    }
    if patterns := spec.get("events"):
        made["supported_event_patterns"] = [str(pattern) for pattern in patterns]
    return made


def of_listener(component: Payload, identity: str, version: str | None, patterns: list[str]) -> Payload:
    """The manifest of an EventListener component that handles events of these types.

    It asks for what the SDK's listeners can call without a declaration: models, tools, knowledge bases, storage.
    """
    permissions = {**_PERMISSIONS, "artifacts": ("metadata", "read", "create")}
    del permissions["interactions"]
    return {
        **_head(component, runner_id(identity, component["metadata"]["name"]), version),
        "usages": ["event"],
        "supported_event_patterns": patterns,
        "capabilities": {"streaming": True, "interrupt": True, "resumable": True},
        "permissions": {kind: list(operations) for kind, operations in permissions.items()},
        "config_schema": [],
    }


def _head(component: Payload, made_id: str, version: str | None) -> Payload:
    meta = component["metadata"]
    described = _texts(meta.get("description"))
    return {
        "protocol_version": "1",
        "id": made_id,
        "name": meta["name"],
        "component_kind": "Runner",
        "label": _texts(meta.get("label")) or {"en_US": meta["name"]},
        **({"description": described} if described else {}),
        "context": {},
        "metadata": {"plugin_version": version, "bridge": "langbot"},
    }


def _texts(value: typing.Any) -> dict[str, str]:
    return {str(key): str(text) for key, text in mapping(value).items() if text}


def _permissions(declared: Payload, name: str) -> dict[str, list[str]]:
    made = {}
    for kind, operations in declared.items():
        if kind == "platform_api":
            # Names are free: the gateway knows its platform actions.
            made[kind] = [str(operation) for operation in operations or []]
            continue
        allowed = _PERMISSIONS.get(kind, ())
        accepted = [operation for operation in operations or [] if operation in allowed]
        if len(accepted) < len(operations or []):
            log.warning("runner %s asks for %s: %s, taking %s", name, kind, operations, accepted)
        if accepted:
            made[kind] = accepted
    return made
