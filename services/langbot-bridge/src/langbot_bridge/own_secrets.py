"""The secrets of the bridge itself, out of reach of its plugins.

A process shows the environment that it was started with in `/proc/PID/environ`, also after it has changed its own, and
plugins run as the same user. So the bridge reads its secrets and executes itself again without their variables; a pipe
hands them over. Then it is not dumpable, so that its memory and `/proc` files need the right to trace any process.
"""

import ctypes
import json
import os
import sys
from pathlib import Path

SECRET = "LANGBOT_BRIDGE_SECRET"  # noqa: S105 - the name of a variable
TOKEN = "LANGBOT_BRIDGE_MCP_TOKEN"  # noqa: S105 - the name of a variable
_VARIABLES = (SECRET, f"{SECRET}_FILE", TOKEN, f"{TOKEN}_FILE")
# The descriptor of the pipe.
_HANDOVER = "LANGBOT_BRIDGE_HANDOVER"
# A pipe holds this much before its writer waits.
_BYTES = 32_768
_PR_SET_DUMPABLE = 4


class SecretFileError(Exception):
    """A secret that cannot be read. The message names its variable."""


def take() -> dict[str, str]:
    """The secrets by the names of their variables; absent ones are empty. May execute the process again."""
    if (descriptor := os.environ.pop(_HANDOVER, "")).isdecimal():
        with open(int(descriptor), "rb") as pipe:
            found: dict[str, str] = json.load(pipe)
    else:
        found = {name: _read(name) for name in (SECRET, TOKEN)}
        if any(name in os.environ for name in _VARIABLES):
            _execute_again(found)
    _hide_memory()
    return found


def _read(name: str) -> str:
    path = os.environ.get(f"{name}_FILE")
    if not path:
        return os.environ.get(name, "")
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SecretFileError(f"{name}_FILE cannot be read: {error}") from error


def _execute_again(found: dict[str, str]) -> None:
    content = json.dumps(found).encode()
    if len(content) > _BYTES:
        raise SecretFileError(f"{SECRET} and {TOKEN} have more than {_BYTES} bytes")
    reader, writer = os.pipe()
    os.write(writer, content)
    os.close(writer)
    os.set_inheritable(reader, True)
    environment = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    command = [sys.executable, *sys.orig_argv[1:]]
    os.execve(sys.executable, command, {**environment, _HANDOVER: str(reader)})  # noqa: S606 - this program again


def _hide_memory() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
