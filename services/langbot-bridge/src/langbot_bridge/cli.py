"""The command `langbot-bridge`."""

import argparse
import asyncio
import logging
import signal
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from aiohttp import web

from .fleet import Fleet, Settings, StartError, Worker
from .front import Front
from .mcp import Mcp
from .own_secrets import SECRET, TOKEN, SecretFileError, take
from .signatures import InvalidSecretError, Keys

_EPILOG = f"""\
{SECRET} or {SECRET}_FILE: the signing secret of the runner endpoint, whsec_…; several with spaces between them
while it is rotated. {TOKEN} or {TOKEN}_FILE: the bearer token of /mcp, where the plugins' tools
are served; without it they are not.
"""


class UsageError(Exception):
    """The command line is incomplete or contradicts itself. The message names the option to change."""


def parser() -> argparse.ArgumentParser:
    """Options of the command line; secrets come from the environment only."""
    made = argparse.ArgumentParser(
        prog="langbot-bridge",
        description="Serves LangBot runner plugins as a Runnel runner endpoint, one process for each plugin.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("plugins", nargs="*", type=Path, metavar="PLUGIN_DIR", help="a plugin's directory")
    made.add_argument("--all", type=Path, metavar="DIR", help="serve every plugin directory in DIR, too")
    made.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    made.add_argument("--port", type=int, default=9200, help="the port; 0 takes a free one (default: 9200)")
    made.add_argument(
        "--identity",
        action="append",
        default=[],
        metavar="[AUTHOR/NAME=]AUTHOR/NAME",
        help="serve a plugin under this identity in place of its own; may be repeated for several",
    )
    made.add_argument(
        "--secrets",
        action="append",
        default=[],
        metavar="PREFIX",
        help="variables that `env:NAME` in a configuration may name (default: BRIDGE_)",
    )
    made.add_argument(
        "--plugin-config",
        action="append",
        default=[],
        metavar="AUTHOR/NAME=FILE",
        help="a JSON file with the settings of the plugin itself",
    )
    made.add_argument("--log", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    made.add_argument("--health", action="store_true", help="ask the bridge at --host and --port, and end")
    return made


def main() -> None:
    """Serves until SIGTERM or SIGINT. An error ends the process with status 1 and its message."""
    options = parser().parse_args()
    logging.basicConfig(level=options.log, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    if options.health:
        sys.exit(_health(options.host, options.port))
    try:
        secrets = take()
        keys = Keys(secrets[SECRET])
        asyncio.run(_serve(options, keys, secrets[TOKEN].strip()))
    except (UsageError, InvalidSecretError, SecretFileError, StartError, OSError) as error:
        sys.exit(f"langbot-bridge: {error}")


async def _serve(options: argparse.Namespace, keys: Keys, token: str) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    # Only this user reaches the sockets of the workers.
    with tempfile.TemporaryDirectory(prefix="langbot-bridge-") as directory:
        found = enumerate(_settings(options))
        fleet = Fleet([Worker(settings, Path(directory) / f"{number}.sock") for number, settings in found])
        front = Front(keys, fleet, Mcp(fleet, token))
        runner = web.AppRunner(front.app(), access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        try:
            await fleet.start()
            await runner.setup()
            site = web.TCPSite(runner, options.host, options.port)
            await site.start()
            for manifest in fleet.runners():
                print(manifest["id"])
            host, port = runner.addresses[0][:2]
            print(f"langbot-bridge listening on http://{host}:{port}", flush=True)
            await stop.wait()
        finally:
            # Workers end first: the front still forwards the last results of their runs.
            await fleet.stop()
            await runner.cleanup()


def _settings(options: argparse.Namespace) -> list[Settings]:
    directories = [path.resolve() for path in options.plugins]
    if options.all is not None:
        directories += sorted(path.parent.resolve() for path in options.all.glob("*/manifest.yaml"))
    if not directories:
        raise UsageError("no plugin: name its directory, the one with manifest.yaml")
    identities = _identities(options.identity, directories)
    configs = dict(_pair(text) for text in options.plugin_config)
    made = []
    for directory in directories:
        own = _own_identity(directory)
        config = configs.pop(own, None)
        made.append(
            Settings(
                directory=directory,
                identities=tuple(identities.pop(own, ())),
                secret_prefixes=tuple(options.secrets or ["BRIDGE_"]),
                plugin_config=Path(config) if config else None,
                log_level=options.log,
            )
        )
    if unknown := [*identities, *configs]:
        raise UsageError(f"no plugin here is called {', '.join(unknown)}: its manifest.yaml names author and name")
    return made


def _identities(given: list[str], directories: list[Path]) -> dict[str, list[str]]:
    made: dict[str, list[str]] = {}
    for text in given:
        if "=" in text:
            own, name = _pair(text)
        elif len(directories) == 1:
            own, name = _own_identity(directories[0]), text
        else:
            raise UsageError(f"--identity {text} does not say of which plugin: write AUTHOR/NAME={text}")
        made.setdefault(own, []).append(name)
    return made


def _own_identity(directory: Path) -> str:
    # Late: the SDK takes a second to import, which a wrong option need not wait for.
    from .plugin import LoadError, own_identity

    try:
        return own_identity(directory)
    except LoadError as error:
        raise UsageError(str(error)) from error


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise UsageError(f"{text} needs an equals sign: AUTHOR/NAME=…")
    return name, value


def _health(host: str, port: int) -> int:
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)  # noqa: S104 - compared, not bound
    try:
        with urllib.request.urlopen(f"http://{name}:{port}/healthz", timeout=3):
            return 0
    except (urllib.error.URLError, TimeoutError) as error:
        print(f"langbot-bridge: nothing answers well at {name}:{port}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    main()
