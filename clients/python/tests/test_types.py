"""The types of the package against the API documents of this repository."""

import inspect
import json
import types
import typing
from pathlib import Path

import pytest

import runnel
from runnel import events
from runnel import types as wire
from runnel.runner import context, data, models

OPENAPI = Path(__file__).parents[3] / "openapi"
SCHEMAS = {
    name: json.loads((OPENAPI / f"{name}.json").read_text())["components"]["schemas"] for name in ("gateway", "runner")
}
# Responses: the package leaves out fields that have no meaning for callers.
PARTIAL = {"AgentRun", "ArtifactMetadata", "TranscriptItem", "LlmTokenUsage"}
# The fields of a request that the document does not list, because the gateway translates them.
ALIASES = {"InputAttachment": {"artifact_id"}}
# The gateway accepts these from runners without the fields that the protocol requires.
TELEMETRY = {"ToolCallStartedPayload", "ToolCallCompletedPayload", "ArtifactCreatedPayload"}
# Events of a run: `test_events_have_all_types`.
EVENTS = set(typing.get_args(events.RunEvent))


def declared() -> list[tuple[str, type]]:
    found = {
        name: one
        for module in (wire, events, context)
        for name, one in vars(module).items()
        if typing.is_typeddict(one) and not name.startswith("_") and one not in EVENTS
    }
    return sorted(found.items())


def fields_of(one: type) -> dict[str, typing.Any]:
    names = {"NotRequired": typing.NotRequired, **vars(wire), **vars(events), **vars(context)}
    return typing.get_type_hints(one, globalns=names, include_extras=True)


def schema_of(name: str) -> dict[str, typing.Any]:
    for document in ("runner", "gateway"):
        if name in SCHEMAS[document]:
            return merged(SCHEMAS[document], SCHEMAS[document][name])
    raise AssertionError(f"no document has a schema {name}")


def merged(schemas: dict[str, typing.Any], schema: dict[str, typing.Any]) -> dict[str, typing.Any]:
    """Properties and required fields with those of `$ref` and `allOf`."""
    if "$ref" in schema:
        return merged(schemas, schemas[schema["$ref"].rsplit("/", 1)[1]])
    document = {"properties": dict(schema.get("properties", {})), "required": set(schema.get("required", []))}
    for part in schema.get("allOf", []):
        one = merged(schemas, part)
        document["properties"] |= one["properties"]
        document["required"] |= one["required"]
    return document


def values_of(hint: typing.Any) -> set[str] | None:
    """The literals of a type, through `NotRequired`, `list` and `| None`."""
    if typing.get_origin(hint) is typing.Literal:
        return set(typing.get_args(hint))
    if typing.get_origin(hint) in (typing.NotRequired, list, typing.Union, types.UnionType):
        return next((found for part in typing.get_args(hint) if (found := values_of(part))), None)
    return None


def enum_of(name: str, field: str) -> set[str] | None:
    document = "runner" if name in SCHEMAS["runner"] else "gateway"
    schemas = SCHEMAS[document]

    def values(schema: typing.Any) -> set[str] | None:
        if "$ref" in schema:
            return values(schemas[schema["$ref"].rsplit("/", 1)[1]])
        if "enum" in schema:
            return {one for one in schema["enum"] if one is not None}
        parts = [*schema.get("oneOf", []), *schema.get("anyOf", []), *schema.get("allOf", [])]
        parts += [schema["items"]] if isinstance(schema.get("items"), dict) else []
        found = [one for part in parts if (one := values(part))]
        if "const" in schema:
            found.append({schema["const"]})
        return set().union(*found) if found else None

    return values(schema_of(name)["properties"][field])


@pytest.mark.parametrize(("name", "one"), declared())
def test_types_match_api_documents(name: str, one: type) -> None:
    fields, schema = fields_of(one), schema_of(name)
    declared_fields = set(fields) - ALIASES.get(name, set())
    extra = declared_fields - set(schema["properties"])
    assert not extra, f"{name}: the document has no {extra}"
    if name not in PARTIAL:
        missing = set(schema["properties"]) - declared_fields
        assert not missing, f"{name}: the type has no {missing}"
    total = getattr(one, "__total__", True)
    required = {field for field, hint in fields.items() if total and typing.get_origin(hint) is not typing.NotRequired}
    if name not in TELEMETRY:
        assert required == schema["required"] & set(fields), name
    for field in declared_fields:
        literals = values_of(fields[field])
        if literals is not None:
            assert literals == enum_of(name, field), f"{name}.{field}"


def public_items() -> typing.Iterator[tuple[str, typing.Any]]:
    """Exports, wire types and members of `ctx`, with the methods of their classes."""
    exported = [getattr(module, name) for module in (runnel, runnel.runner) for name in module.__all__]
    modules = (wire, events, context, data, models, runnel.runner.results)
    owned = [
        one for module in modules for one in vars(module).values() if getattr(one, "__module__", "") == module.__name__
    ]
    for one in [*exported, *owned]:
        name = getattr(one, "__name__", "")
        if not (inspect.isclass(one) or inspect.isfunction(one)) or name.startswith("_"):
            continue
        yield name, one
        for member, value in vars(one).items():
            if member[0] != "_" and (inspect.isfunction(value) or isinstance(value, property)):
                yield f"{name}.{member}", value


def test_public_items_have_docstrings() -> None:
    found = dict(public_items())
    assert {"Client.runs", "AgentRun", "RunContext.text", "State.put", "delta"} <= set(found)
    assert [name for name, one in found.items() if not one.__doc__] == []


def test_events_have_all_types() -> None:
    named = {next(iter(values_of(fields_of(one)["type"]) or ())): one for one in EVENTS}
    source = Path(__file__).parents[3] / "crates/protocol/src/result.rs"
    text = source.read_text()
    listed = text[text.index("result_types!(") : text.index(");", text.index("result_types!("))]
    results = {part.split('"')[0] for part in listed.split('= "')[1:]}
    assert set(named) == results | {"run.restarted", "run.amended"}
    event = SCHEMAS["gateway"]["AgentRunEvent"]
    assert set(named) == set(event["discriminator"]["mapping"])
