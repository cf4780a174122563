"""Worker processes, one for each plugin directory."""

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import sys
import typing
from pathlib import Path

import aiohttp

from .limits import LIMITS
from .payload import Payload

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.05
# After this uptime, the restart pause is reset.
_STEADY_SECONDS = 60.0


class StartError(Exception):
    """A plugin did not load. The message names it."""


class DownError(Exception):
    """The worker is being restarted."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Command-line options of one worker process."""

    directory: Path
    identities: tuple[str, ...] = ()
    secret_prefixes: tuple[str, ...] = ()
    plugin_config: Path | None = None
    log_level: str = "INFO"

    def command(self, socket: Path) -> list[str]:
        """The arguments of the process."""
        options = [("--directory", str(self.directory)), ("--socket", str(socket)), ("--log", self.log_level)]
        options += [("--identity", identity) for identity in self.identities]
        options += [("--secrets", prefix) for prefix in self.secret_prefixes]
        if self.plugin_config:
            options.append(("--plugin-config", str(self.plugin_config.absolute())))
        # `-P`: a plugin's files never shadow the modules of the worker.
        command = [sys.executable, "-P", "-m", "langbot_bridge.worker"]
        return command + [part for option in options for part in option]

    def environment(self) -> dict[str, str]:
        """Environment of the process: no bytecode files in the plugin's directory."""
        return {"PYTHONDONTWRITEBYTECODE": "1", **os.environ}


class Worker:
    """One worker process, started again whenever it ends."""

    def __init__(self, settings: Settings, socket: Path) -> None:
        self.settings, self._socket = settings, socket
        self.runners: list[Payload] = []
        self.tools: list[Payload] = []
        # Set after the first attempt to start.
        self.attempted = asyncio.Event()
        self._error = ""
        self._process: asyncio.subprocess.Process | None = None
        self._session: aiohttp.ClientSession | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The name of its directory, for logs."""
        return self.settings.directory.name

    @property
    def is_up(self) -> bool:
        """True while the process lives and its socket exists."""
        alive = self._process is not None and self._process.returncode is None
        return alive and self._socket.exists()

    @property
    def reason(self) -> str:
        """Cause of the outage, shown by the health report and in logs."""
        return self._error or ("it is starting" if not self.attempted.is_set() else "it is being restarted")

    async def start(self) -> None:
        """Starts the process and waits until the plugin is loaded. Raises `StartError`."""
        if self._session is None:
            connector = aiohttp.UnixConnector(str(self._socket), limit=0)
            # The front bounds what it reads; a run's stream has no end of its own.
            timeout = aiohttp.ClientTimeout(total=None)
            self._session = aiohttp.ClientSession("http://worker", connector=connector, timeout=timeout)
        self._socket.unlink(missing_ok=True)
        self._process = await asyncio.create_subprocess_exec(
            *self.settings.command(self._socket),
            env=self.settings.environment(),
            stdin=asyncio.subprocess.PIPE,
            # Standard output is the front's own; a plugin that prints does so on standard error.
            stdout=sys.stderr,
        )
        try:
            async with asyncio.timeout(LIMITS.load_seconds):
                while not self._socket.exists():
                    if self._process.returncode is not None:
                        raise StartError(f"the plugin in {self.settings.directory} was not loaded, see above")
                    await asyncio.sleep(_POLL_SECONDS)
                async with self._session.get("/offers") as answer:
                    offers = await answer.json()
        except (TimeoutError, aiohttp.ClientError) as error:
            # The kill lets `_run_forever` restart it: a hanging process never ends by itself.
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            text = f"the plugin in {self.settings.directory} was not loaded within {LIMITS.load_seconds:g} s"
            raise StartError(text) from error
        self.runners, self.tools = offers["runners"], offers["tools"]

    def keep(self, starts: asyncio.Semaphore, on_start: typing.Callable[["Worker"], None]) -> None:
        """Keeps the process running from now on. `starts` bounds the plugins that load at once."""
        self._keeper = asyncio.create_task(self._run_forever(starts, on_start))

    @contextlib.asynccontextmanager
    async def post(
        self, path: str, body: bytes, headers: typing.Mapping[str, str]
    ) -> typing.AsyncIterator[aiohttp.ClientResponse]:
        """A request to the worker. Raises `DownError` if it cannot be reached."""
        if self._session is None or not self.is_up:
            raise DownError
        try:
            answer = await self._session.post(path, data=body, headers={**headers, "content-type": "application/json"})
        except (aiohttp.ClientConnectionError, aiohttp.ClientOSError) as error:
            raise DownError from error
        try:
            yield answer
        finally:
            # Closed, not released: the rest of the stream belongs to a run that is over.
            answer.close()

    async def stop(self) -> None:
        """Ends the process: asks, waits for live runs, kills."""
        if self._keeper is not None:
            self._keeper.cancel()
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(LIMITS.stop_seconds + 3.0):
                    await process.wait()
            except TimeoutError:
                log.warning("worker %s did not end in time, killing it", self.name)
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._session is not None:
            await self._session.close()

    async def _run_forever(self, starts: asyncio.Semaphore, on_start: typing.Callable[["Worker"], None]) -> None:
        pause = LIMITS.restart_seconds
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                async with starts:
                    await self.start()
                self._error = ""
                on_start(self)
            except (StartError, OSError, aiohttp.ClientError) as error:
                self._error = str(error)
                log.error("worker %s was not started, trying again in %g s: %s", self.name, pause, error)
            self.attempted.set()
            if self._process is not None:
                status = await self._process.wait()
                if not self._error:
                    log.error("worker %s ended with status %s, restarting in %g s", self.name, status, pause)
            self._socket.unlink(missing_ok=True)
            if not self._error and loop.time() - began > _STEADY_SECONDS:
                pause = LIMITS.restart_seconds
            await asyncio.sleep(pause)
            pause = min(pause * 2, LIMITS.longest_restart_seconds)


class Fleet:
    """All workers. The first that offers an id or a tool's name serves it."""

    def __init__(self, workers: list[Worker]) -> None:
        self.workers = workers
        self._by_runner: dict[str, Worker] = {}
        self._by_tool: dict[str, Worker] = {}
        self._is_serving = asyncio.Event()

    async def start(self) -> None:
        """Starts the workers, a few at a time, and keeps them running.

        Returns after the first attempt of each; a slow one is not waited for once another is up. Raises `StartError`
        if no plugin loads.
        """
        starts = asyncio.Semaphore(LIMITS.concurrent_starts)
        for worker in self.workers:
            worker.keep(starts, self._take_offers)
        attempts = asyncio.ensure_future(self._attempts())
        one = asyncio.ensure_future(self._serving())
        await asyncio.wait([attempts], timeout=LIMITS.ready_seconds)
        await asyncio.wait([attempts, one], return_when=asyncio.FIRST_COMPLETED)
        attempts.cancel()
        one.cancel()
        if not self._is_serving.is_set():
            raise StartError(self.workers[0].reason)
        for missing in self.unavailable():
            log.warning("plugin %s is not served yet: %s", missing["plugin"], missing["reason"])

    async def _attempts(self) -> None:
        for worker in self.workers:
            await worker.attempted.wait()

    async def _serving(self) -> None:
        await self._is_serving.wait()

    async def stop(self) -> None:
        """Stops all workers at once."""
        await asyncio.gather(*(worker.stop() for worker in self.workers))

    def unavailable(self) -> list[Payload]:
        """The plugins that are not up, each with the reason."""
        return [{"plugin": worker.name, "reason": worker.reason} for worker in self.workers if not worker.is_up]

    def runners(self) -> list[Payload]:
        """The manifests, also of workers that are being restarted."""
        return [
            runner
            for worker in self.workers
            for runner in worker.runners
            if self._by_runner.get(runner["id"]) is worker
        ]

    def tools(self) -> list[Payload]:
        """The tools, as MCP lists them."""
        return [tool for worker in self.workers for tool in worker.tools if self._by_tool.get(tool["name"]) is worker]

    def worker_of(self, runner_id: str) -> Worker | None:
        """The worker that serves a runner."""
        return self._by_runner.get(runner_id)

    def worker_of_tool(self, name: str) -> Worker | None:
        """The worker that serves a tool."""
        return self._by_tool.get(name)

    def _take_offers(self, worker: Worker) -> None:
        for runner in worker.runners:
            self._offer(self._by_runner, str(runner["id"]), worker)
        for tool in worker.tools:
            self._offer(self._by_tool, str(tool["name"]), worker)
        log.info("worker %s is up", worker.name)
        self._is_serving.set()

    @staticmethod
    def _offer(registry: dict[str, Worker], name: str, worker: Worker) -> None:
        first = registry.setdefault(name, worker)
        if first is not worker:
            log.warning("%s of %s is left out: %s has it already", name, worker.name, first.name)
