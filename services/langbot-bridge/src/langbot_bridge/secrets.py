"""`env:NAME` in an agent's configuration: a secret from the environment of the bridge."""

import re
import typing

_REFERENCE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")


class SecretError(Exception):
    """A reference that may not or cannot be resolved. The message names the variable and the key."""


class Secrets:
    """Resolves references to variables whose names begin with an allowed prefix.

    The prefix keeps an agent's configuration from sending other variables of the bridge to an address of its choice.
    """

    def __init__(self, prefixes: typing.Sequence[str], environment: typing.Mapping[str, str]) -> None:
        self._prefixes = tuple(prefixes)
        self._environment = environment

    def resolve(self, value: typing.Any, key: str = "") -> typing.Any:
        """The value with every reference replaced, at any depth."""
        if isinstance(value, dict):
            return {name: self.resolve(inner, f"{key}/{name}") for name, inner in value.items()}
        if isinstance(value, list):
            return [self.resolve(inner, f"{key}/{index}") for index, inner in enumerate(value)]
        reference = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        return self._lookup(reference[1], key) if reference else value

    def _lookup(self, name: str, key: str) -> str:
        if not name.startswith(self._prefixes):
            allowed = ", ".join(self._prefixes)
            raise SecretError(
                f"config{key} names the variable {name}, which the bridge does not offer: "
                f"its names begin with {allowed}; start it with --secrets for others"
            )
        if name not in self._environment:
            raise SecretError(f"config{key} names the variable {name}, which is not set: set it where the bridge runs")
        return self._environment[name]
