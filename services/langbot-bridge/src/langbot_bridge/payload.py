"""The type of JSON objects that go through the bridge."""

import typing

Payload = dict[str, typing.Any]


def compact(value: Payload) -> Payload:
    """The object without its null members."""
    return {name: inner for name, inner in value.items() if inner is not None}


def mapping(value: typing.Any) -> Payload:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}
