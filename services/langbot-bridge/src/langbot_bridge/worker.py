"""The process of one plugin: serves its runs and tools to the front, over a Unix socket."""

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path

from aiohttp import web

from .execution import execute
from .host_api import HostApi
from .limits import LIMITS
from .payload import Payload
from .plugin import LoadedRunner, LoadError, Plugin, load
from .refusal import Refusal, refusals
from .run import Run
from .secrets import SecretError, Secrets
from .stream import ResultStream
from .tool_calls import ToolCalls

log = logging.getLogger(__name__)

# Exit status of a plugin that did not load; the front logs it.
LOAD_FAILED = 3


class Worker:
    """The HTTP face of a loaded plugin. The front has verified and bounded every request."""

    def __init__(self, plugin: Plugin, host: HostApi, secrets: Secrets) -> None:
        self._plugin, self._host, self._secrets = plugin, host, secrets
        self._tools = ToolCalls()
        # Results of ended runs, oldest first, for a gateway that was lost before it stored the last.
        self._ended: dict[str, ResultStream] = {}

    def app(self) -> web.Application:
        """Routes for the front, on a Unix socket."""
        app = web.Application(middlewares=[refusals], client_max_size=LIMITS.body_bytes)
        app.router.add_get("/offers", self.list_offers)
        app.router.add_post("/runs", self.start_run)
        app.router.add_post("/runs/{run_id}/resume", self.resume_run)
        app.router.add_post("/runs/{run_id}/cancel", self.cancel_run)
        app.router.add_post("/tools/{name}", self.call_tool)
        return app

    async def list_offers(self, _request: web.Request) -> web.Response:
        """Lists the manifests of the runners, and the tools in the form of MCP."""
        tools = [
            {"name": tool.name, "description": tool.description, "inputSchema": tool.parameters}
            for tool in self._plugin.tools.values()
        ]
        runners = [runner.manifest for runner in self._plugin.runners.values()]
        return web.json_response({"runners": runners, "tools": tools})

    async def start_run(self, request: web.Request) -> web.StreamResponse:
        """Executes a run and streams its results."""
        message = await request.json()
        runner = self._plugin.runners.get(message["runner_id"])
        if runner is None:
            raise Refusal(404, "not_found", f"there is no runner {message['runner_id']} here")
        run_id = str(message["context"]["run_id"])
        run = Run(message["context"], message["host"], request.headers, lambda: self._lose(run_id))
        run.replies = runner.replies
        if run_id in self._host.runs:
            raise Refusal(409, "conflict", f"run {run_id} is being executed already")
        self._host.runs[run_id] = run
        run.task = asyncio.create_task(self._execute(runner, run))
        return await _sent(request, run.stream, int(request.headers.get("runnel-attempt") or 1), 0)

    async def resume_run(self, request: web.Request) -> web.StreamResponse:
        """Streams the results of a live or ended run to the gateway that has it now."""
        message, run_id = await request.json(), request.match_info["run_id"]
        attempt, after = message["attempt"], message.get("after") or 0
        run = self._host.runs.get(run_id)
        stream = self._ended.get(run_id) if run is None else run.stream
        if stream is None:
            raise Refusal(404, "not_found", f"there is no run {run_id} here")
        if attempt <= stream.attempt:
            raise Refusal(409, "conflict", f"run {run_id} has attempt {stream.attempt}")
        if not stream.has_after(after):
            # The gateway ends the run after this response.
            self._lose(run_id)
            raise Refusal(404, "not_found", f"results after {after} of run {run_id} are dropped")
        if run is not None:
            run.move(message["host"], request.headers)
        return await _sent(request, stream, attempt, after)

    async def _execute(self, runner: LoadedRunner, run: Run) -> None:
        try:
            await execute(runner, run, self._host, self._secrets)
        finally:
            run.stream.end()
            # A lost run is absent already.
            if self._host.runs.pop(run.id, None) is not None:
                self._retain(run)

    def _retain(self, run: Run) -> None:
        self._ended[run.id] = run.stream
        while (
            len(self._ended) > LIMITS.ended_runs or sum(one.bytes for one in self._ended.values()) > LIMITS.ended_bytes
        ):
            del self._ended[next(iter(self._ended))]

    def _lose(self, run_id: str) -> None:
        self._ended.pop(run_id, None)
        if (run := self._host.runs.pop(run_id, None)) is not None:
            log.warning("no gateway can resume run %s, cancelling it", run_id)
            run.abandon()

    async def cancel_run(self, request: web.Request) -> web.Response:
        """Ends a run as cancelled."""
        run = self._host.runs.get(request.match_info["run_id"])
        if run is None:
            raise Refusal(404, "not_found", f"there is no run {request.match_info['run_id']} here")
        runner = self._plugin.runners.get((await request.json())["runner_id"])
        run.cancel(LIMITS.cancel_grace_seconds if runner and runner.interrupts else 0.0)
        return web.json_response({"status": "cancelling"}, status=202)

    async def call_tool(self, request: web.Request) -> web.Response:
        """Calls a tool. A failed call is a result with `isError`."""
        tool = self._plugin.tools.get(request.match_info["name"])
        if tool is None:
            raise Refusal(404, "not_found", f"there is no tool {request.match_info['name']} here")
        return web.json_response(await self._tools.call(tool, await request.json()))

    async def stop(self) -> None:
        """Ends the live runs and waits for their streams."""
        streams = [*self._ended.values()]
        for run in self._host.runs.values():
            run.shut_down()
            streams.append(run.stream)
        async with asyncio.timeout(LIMITS.stop_seconds):
            await asyncio.gather(*(stream.closed.wait() for stream in streams))


async def _sent(request: web.Request, stream: ResultStream, attempt: int, after: int) -> web.StreamResponse:
    connection = stream.attach(attempt, after)
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    try:
        await response.prepare(request)
        async for frame in stream.frames(connection):
            await response.write(frame)
        await response.write_eof()
    finally:
        stream.detach(connection)
    return response


async def serve(options: argparse.Namespace, parent: int) -> None:
    """Loads the plugin and serves it until a signal arrives or the parent process is gone."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def end_with_parent() -> None:
        # An end of file stays readable: without this the loop would spin.
        loop.remove_reader(parent)
        stop.set()

    loop.add_reader(parent, end_with_parent)
    secrets = Secrets(options.secrets, os.environ)
    host = HostApi()
    plugin = await load(Path(options.directory), options.identity, host, _config(options, secrets))
    worker = Worker(plugin, host, secrets)
    runner = web.AppRunner(worker.app(), access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    # The name appears once the socket listens: the front waits for it.
    unfinished = options.socket + ".new"
    await web.UnixSite(runner, unfinished).start()
    os.rename(unfinished, options.socket)
    await stop.wait()
    try:
        await worker.stop()
    except TimeoutError:
        log.warning("live runs did not end in time, their streams are closed")
    await runner.cleanup()
    await host.client.close()


def _config(options: argparse.Namespace, secrets: Secrets) -> Payload:
    text = Path(options.plugin_config).read_text(encoding="utf-8") if options.plugin_config else "{}"
    resolved: Payload = secrets.resolve(json.loads(text))
    return resolved


def main() -> None:
    """The entry of the process; the front writes its arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--identity", action="append", default=[])
    parser.add_argument("--secrets", action="append", default=[])
    parser.add_argument("--plugin-config", default="")
    parser.add_argument("--log", default="INFO")
    options = parser.parse_args()
    form = f"%(asctime)s %(levelname)s {Path(options.directory).name} %(name)s: %(message)s"
    logging.basicConfig(level=options.log, format=form, stream=sys.stderr)
    # A plugin must not read from the parent's pipe, and its child processes must not inherit it.
    parent = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        asyncio.run(serve(options, parent))
    except (LoadError, SecretError, OSError, ValueError) as error:
        log.error("the plugin in %s cannot be served: %s", options.directory, error)
        sys.exit(LOAD_FAILED)
    # `os._exit`: threads of a plugin must not keep the process alive.
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
