"""Executes one run: context in, results out, exactly one terminal."""

import asyncio
import contextlib
import logging
import typing
from collections.abc import AsyncGenerator, AsyncIterator

from langbot_plugin.api.entities.builtin.runner import RunnerContext
from langbot_plugin.utils.deadline import anext_with_deadline

from . import events, files, results
from .host_api import HostApi
from .limits import LIMITS
from .payload import Payload, mapping
from .plugin import LoadedRunner
from .replies import EVENT_REPLY
from .run import Run, current_run
from .secrets import SecretError, Secrets

log = logging.getLogger(__name__)

# Limit for the text of an exception of the plugin; the log has the complete text.
_ERROR_CHARACTERS = 2000


async def execute(runner: LoadedRunner, run: Run, host: HostApi, secrets: Secrets) -> None:
    """Puts the results of the runner into the run's stream, then its end."""
    current_run.set(run)
    renewal = asyncio.create_task(host.keep_token(run))
    try:
        async with contextlib.aclosing(_results(runner, run, host, secrets)) as source:
            async for result in source:
                for one in await files.uploaded(result, run, host.client):
                    await run.put(one)
    except asyncio.CancelledError:
        if run.end is None:
            raise
    except Exception as error:
        log.exception("run %s: the runner failed", run.id)
        text = f"Error running agent: {error}"[:_ERROR_CHARACTERS]
        await run.put(results.failed(run.id, text, "runner.exception"))
    finally:
        renewal.cancel()
    # `put` drops it if the runner has sent a terminal result itself.
    await run.put(run.end or results.completed(run.id))


async def _results(runner: LoadedRunner, run: Run, host: HostApi, secrets: Secrets) -> AsyncGenerator[Payload, None]:
    try:
        config = secrets.resolve({**runner.defaults, **mapping(run.context.get("config"))})
    except SecretError as error:
        yield results.failed(run.id, str(error), "runner.config_invalid")
        return
    given = files.InputFiles(run, host.client)
    context = {**run.context, "config": config, "input": await given.inline(run.context["input"])}
    for note in given.notes:
        yield note
    try:
        ctx = RunnerContext.model_validate(sdk_context(context, run, runner.replies))
        source = runner.instance.invoke(ctx)
    except ValueError as error:
        text = f"Context validation failed: {error}"[:_ERROR_CHARACTERS]
        yield results.failed(run.id, text, "runner.context_invalid")
        return
    try:
        last = None if run.deadline is None else run.deadline + LIMITS.deadline_grace_seconds
        async for result in _until_deadline(source, last):
            if result.run_id != run.id:
                raise ValueError("the runner's result belongs to another run")
            made = result.model_dump(mode="json")
            if results.lacks_scope(made, run.context):
                log.info("run %s: state of scope %s left out", run.id, made["data"]["scope"])
                continue
            yield made
            if made["type"] in results.TERMINAL:
                return
    except TimeoutError:
        yield results.failed(run.id, "Agent runner timed out", "runner.timeout", retryable=True)
    finally:
        with contextlib.suppress(Exception):
            await source.aclose()


async def _until_deadline(source: typing.Any, deadline: float | None) -> AsyncIterator[typing.Any]:
    while True:
        try:
            yield await anext_with_deadline(source, deadline)
        except StopAsyncIteration:
            return


def sdk_context(context: Payload, run: Run, replies: bool) -> Payload:
    """The context of the SDK: the gateway's, with the calls that the bridge itself serves."""
    access = mapping(context.get("context"))
    # The bridge itself takes results of the calling run, so this needs no grant.
    apis = {**mapping(access.get("available_apis")), "run_append_result": True}
    resources = mapping(context.get("resources"))
    runtime = {**mapping(context.get("runtime")), "deadline_at": run.deadline}
    if replies:
        context = events.with_payload(context)
        apis["reply_stream"] = True
        resources = {**resources, "tools": [*(resources.get("tools") or []), EVENT_REPLY]}
    return {
        **context,
        "context": {**access, "available_apis": apis},
        "resources": resources,
        "runtime": runtime,
    }
