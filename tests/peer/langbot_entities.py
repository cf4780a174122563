"""The entities of LangBot's own SDK, field by field, for comparison with ours.

`describe`: by class, its fields, examples of its JSON, and what it makes of documents with one fault each.
`read`: stdin is [[class, JSON text]...]; the answer lists for each the keys that the class refuses or drops, why
it refused the rest, and what it made of it.
"""
import enum
import importlib
import inspect
import json
import pkgutil
import sys
import types
import typing

import annotated_types
import pydantic
from langbot_plugin.api.entities.builtin import runner
from langbot_plugin.api.entities.builtin.provider import message
from langbot_plugin.api.entities.builtin.rag.context import RetrievalResultEntry
from langbot_plugin.api.entities.builtin.resource.tool import LLMTool

RUN_ID = "01a1ffb1-ba00-7c3a-9b1e-5f0c2a7d4e61"
# Values that every host would send, for fields that are texts for LangBot and typed here.
SAMPLES = {"run_id": RUN_ID, "claimed_run_id": RUN_ID, "agent_id": RUN_ID, "runner_id": "plugin:a/b/c",
           "status": "running", ("RunnerManifest", "id"): "plugin:a/b/c", ("RunnerManifest", "name"): "c"}
# One of each JSON type, for fields of another.
WRONG_TYPES = {"a text": "text", "an integer": 7, "a fraction": 0.5, "a flag": True, "a list": [], "an object": {}}
# Their lengths and counts are checked by ours, so one too many is tried everywhere inside them.
BOUNDED = ("InteractionRequest", "InteractionSubmission")


def entities():
    modules = [importlib.import_module(f"{runner.__name__}.{module.name}")
               for module in pkgutil.iter_modules(runner.__path__)]
    found = {LLMTool, RetrievalResultEntry}
    for module in [*modules, message]:
        found.update(member for _, member in inspect.getmembers(module, inspect.isclass)
                     if issubclass(member, pydantic.BaseModel) and member.__module__ == module.__name__)
    return sorted(found, key=lambda entity: entity.__name__)


def fields(entity):
    """Those that are ever serialised."""
    return {name: field for name, field in entity.model_fields.items() if not field.exclude}


def arms(annotation):
    """The alternatives of an annotation, without null."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [arm for part in typing.get_args(annotation) for arm in arms(part)]
    return [] if annotation is type(None) else [annotation]


def is_nullable(annotation):
    if annotation in (typing.Any, pydantic.JsonValue):
        return False  # declared by the type
    return type(None) in typing.get_args(annotation) or any(map(is_nullable, typing.get_args(annotation)
                                                                if len(arms(annotation)) > 1 else ()))


def is_entity(annotation):
    return inspect.isclass(annotation) and issubclass(annotation, pydantic.BaseModel)


def described(annotation):
    if annotation in (typing.Any, pydantic.JsonValue):
        return "any"
    alternatives = arms(annotation)
    if len(alternatives) > 1:
        names = {described(arm) for arm in alternatives}
        if "string" in names:
            names = {name for name in names if not name.startswith("enum(")}
        return "|".join(sorted(names))
    (annotation,) = alternatives
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return f"enum({','.join(sorted(arguments))})"
    if origin is list:
        return f"[{described(arguments[0])}]"
    if origin is dict:
        return f"{{{described(arguments[1])}}}"
    if annotation is dict:
        return "{any}"
    if issubclass(annotation, enum.Enum):
        return f"enum({','.join(sorted(member.value for member in annotation))})"
    if is_entity(annotation):
        return annotation.__name__
    return {str: "string", int: "integer", float: "number", bool: "boolean"}[annotation]


def limits(field):
    found = {}
    is_list = any(typing.get_origin(arm) is list for arm in arms(field.annotation))
    unit = "items" if is_list else "length"
    for limit in field.metadata:
        if isinstance(limit, annotated_types.MinLen):
            found[f"least {unit}"] = limit.min_length
        elif isinstance(limit, annotated_types.MaxLen):
            found[f"most {unit}"] = limit.max_length
    return found


def example_of(annotation, entity, name, default=None):
    if (entity.__name__, name) in SAMPLES or name in SAMPLES and annotation is not int:
        return SAMPLES.get((entity.__name__, name), SAMPLES.get(name))
    if annotation in (typing.Any, pydantic.JsonValue):
        return {"any": [True, None, {"deep": 0.5}]}
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return [value for value in arguments if value != default or len(arguments) == 1][-1]
    if origin is list and typing.get_origin(arguments[0]) is typing.Literal:
        return list(typing.get_args(arguments[0]))
    if origin is list:
        return [example_of(arguments[0], entity, name)]
    if annotation is dict or origin is dict and arguments[1] is not str:
        return {"any": [True, None, {"deep": 0.5}]}
    if origin is dict:
        return {"en_US": "text", "zh_Hans": "文字"}
    if is_entity(annotation):
        return full(annotation)
    if issubclass(annotation, enum.Enum):
        return list(annotation)[-1].value
    return {str: f"{name} é", int: 7, float: 0.25, bool: True}[annotation]


def full(entity, arm=0):
    """A value for every field, none of them the default; of alternatives the `arm`th."""
    example = {}
    for name, field in fields(entity).items():
        alternatives = arms(field.annotation) or [field.annotation]
        example[name] = example_of(alternatives[min(arm, len(alternatives) - 1)], entity, name, field.default)
        is_fixed = typing.get_origin(field.annotation) is typing.Literal and len(typing.get_args(field.annotation)) == 1
        assert field.is_required() or is_fixed or example[name] != field.get_default(call_default_factory=True), name
    if entity.model_config.get("extra") == "allow":
        example["further_key"] = {"kept": [1]}
    return example


def validated(entity, text):
    if entity is LLMTool:  # its function is never on the wire
        document = json.loads(text)
        return LLMTool.model_validate({**document, "func": print}, strict=True)
    # Strict: a number in quotes or a float for an int is no match.
    return entity.model_validate_json(text, strict=True)


def takes(entity, document):
    try:
        validated(entity, json.dumps(document))
    except pydantic.ValidationError:
        return False
    return True


def one_fault_each(entity):
    """[what was done to it, document] for every way in which one field can be wrong."""
    example = full(entity)
    for name, field in fields(entity).items():
        yield f"{name}: left out", {key: value for key, value in example.items() if key != name}
        yield f"{name}: null", {**example, name: None}
        for kind, wrong in WRONG_TYPES.items():
            yield f"{name}: {kind}", {**example, name: wrong}
        for limit in field.metadata:
            if isinstance(limit, annotated_types.Ge):
                yield f"{name}: too little", {**example, name: limit.ge - 1}
        for arm in arms(field.annotation):
            listed = typing.get_origin(arm) is list
            inner = typing.get_args(arm)[0] if listed else arm
            if typing.get_origin(inner) is typing.Literal:
                for value in typing.get_args(inner):
                    yield f"{name}: {value}", {**example, name: [value] if listed else value}
    yield "an unknown key", {**example, "nobody_knows": 1}
    if entity.__name__ in BOUNDED:
        for path, value in out_of_bounds(entity, ""):
            yield f"{path}: {len(value)} long", replaced(example, path.split("/")[1:], value)


def out_of_bounds(entity, prefix):
    """A path and a value that is just inside or just outside its limits."""
    for name, field in fields(entity).items():
        bounds, path = limits(field), f"{prefix}/{name}"
        for edge in [edge for kind in ("length", "items") for edge in
                     (bounds.get(f"least {kind}", 0) - 1, bounds.get(f"most {kind}"), bounds.get(f"most {kind}", -2) + 1)
                     if edge is not None and edge >= 0]:
            yield path, many(field, edge) if "most items" in bounds else "é" * edge
        for arm in arms(field.annotation):
            inner = typing.get_args(arm)[0] if typing.get_origin(arm) is list else arm
            if is_entity(inner):
                yield from out_of_bounds(inner, f"{path}/0")


def many(field, count):
    """A list of examples that differ in what must differ."""
    (inner,) = typing.get_args(field.annotation)
    key = "id" if "id" in inner.model_fields else "value"
    return [{**full(inner), key: str(number)} for number in range(count)]


def replaced(document, path, value):
    copy = json.loads(json.dumps(document))
    target = copy
    for key in path[:-1]:
        target = target[int(key)] if isinstance(target, list) else target[key]
    target[path[-1]] = value
    return copy


def describe(entity):
    required = [name for name, field in fields(entity).items() if field.is_required()]
    example, other = full(entity), full(entity, arm=1)
    least = {name: example[name] for name in required}
    examples = [example, least] if example == other else [example, other, least]
    return {
        "fields": {name: {"required": field.is_required(), "nullable": is_nullable(field.annotation),
                          "type": described(field.annotation), "limits": limits(field)}
                   for name, field in fields(entity).items()},
        "further_keys": entity.model_config.get("extra", "ignore"),
        "examples": [{"document": document, "dumped": validated(entity, json.dumps(document)).model_dump_json()}
                     for document in examples],
        "probes": [{"what": what, "document": document, "taken": takes(entity, document)}
                   for what, document in one_fault_each(entity)],
    }


def strip_unknown(value, entity, path=""):
    """The value without keys that the class does not know, and the paths of those."""
    if is_entity(entity) and isinstance(value, dict):
        output, unknown = {}, []
        for name, inner in value.items():
            if name not in entity.model_fields:
                if entity.model_config.get("extra") == "allow":
                    output[name] = inner
                else:
                    unknown.append(f"{path}/{name}")
                continue
            output[name], below = inner, []
            for arm in arms(entity.model_fields[name].annotation):
                listed = typing.get_origin(arm) is list
                if listed and isinstance(inner, list) and is_entity(typing.get_args(arm)[0]):
                    stripped = [strip_unknown(item, typing.get_args(arm)[0], f"{path}/{name}/-") for item in inner]
                    output[name], below = [item for item, _ in stripped], [at for _, found in stripped for at in found]
                elif is_entity(arm) and isinstance(inner, dict):
                    output[name], below = strip_unknown(inner, arm, f"{path}/{name}")
            unknown += below
        return output, unknown
    return value, []


def read(entity, text):
    document, unknown = strip_unknown(json.loads(text), entity)
    try:
        model = validated(entity, json.dumps(document))
    except pydantic.ValidationError as error:
        return {"refused": str(error), "unknown": unknown, "dumped": None}
    return {"refused": None, "unknown": sorted(set(unknown)), "dumped": model.model_dump_json()}


if sys.argv[1] == "describe":
    answer = {entity.__name__: describe(entity) for entity in entities()}
else:
    by_name = {entity.__name__: entity for entity in entities()}
    answer = [read(by_name[name], text) for name, text in json.load(sys.stdin)]
json.dump(answer, sys.stdout)
