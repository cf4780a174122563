"""Calls of a run that its manifest does not ask for, and that therefore find nothing."""

from __future__ import annotations

import logging
from typing import Any

from . import results
from .context import Permissions
from .results import Result

log = logging.getLogger("runnel.runner")


class MissingPermissions:
    """Permissions that the manifest lacks, each reported once a run: a warning, and a `log` result for the run."""

    def __init__(self, run_id: str, permissions: Permissions) -> None:
        self._run_id, self._permissions = run_id, permissions
        self._reported = set[tuple[str, str]]()
        self._unsent: list[Result] = []

    def report(self, call: str, group: str, operation: str) -> None:
        """Reports a call that found no grant, unless the agent or the event withholds what the manifest asks for."""
        if (group, operation) in self._reported or self._asks_for(group, operation):
            return
        self._reported.add((group, operation))
        text = (
            f"{call} finds nothing: {group} was not granted (the manifest lacks permissions.{group} {operation}); "
            "add it to the permissions of the runner"
        )
        log.warning("run %s: %s", self._run_id, text)
        self._unsent.append(results.log(text, "warning"))

    def _asks_for(self, group: str, operation: str) -> bool:
        # Any area of storage asks for all scopes of state.
        if group == "state" and self._permissions.get("storage"):
            return True
        operations: Any = self._permissions.get(group) or ()
        return operation in operations

    def take(self) -> list[Result]:
        """Log results that were not sent yet."""
        taken, self._unsent = self._unsent, []
        return taken
