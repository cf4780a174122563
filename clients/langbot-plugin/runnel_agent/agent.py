"""One LangBot run: posts the event, forwards the answer, and cancels a run that LangBot has left."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator

from langbot_plugin.api.entities.builtin.runner import RunnerContext, RunnerResult

from .actions import Actions
from .answers import Answers
from .client import TERMINAL, Client, EventsGoneError, GatewayError, segment
from .envelope import answer_of, envelope, event_id, with_uploads
from .media import Json
from .settings import ConfigError, Settings

log = logging.getLogger(__name__)

# Limit for `run_get`, which LangBot answers from its database.
_PIPELINE_SECONDS = 5.0

_NO_AGENT = (
    "no agent of Runnel answers this event: add one whose event_types and filters take it "
    "(`runnel explain` shows the reason)"
)


async def execute(ctx: RunnerContext) -> AsyncGenerator[RunnerResult, None]:
    """The results of a run, with exactly one terminal."""
    try:
        settings = Settings.of(ctx.config)
        async with Client(settings) as client:
            accepted = await _post(ctx, settings, client)
            run_id = accepted.get("run_id")
            if not run_id and accepted.get("reason") == "no_agent":
                raise GatewayError("runnel.no_agent", _NO_AGENT)
            if not run_id or accepted.get("steered"):
                # Steering: a live run has absorbed the message and answers it in its own stream.
                yield RunnerResult.run_completed(ctx.run_id)
                return
            async with contextlib.aclosing(_answer(ctx, client, str(run_id))) as results:
                async for result in results:
                    yield result
    except ConfigError as error:
        yield RunnerResult.run_failed(ctx.run_id, str(error), "runnel.config_invalid")
    except GatewayError as error:
        yield RunnerResult.run_failed(ctx.run_id, str(error), error.code, error.retryable)


async def _post(ctx: RunnerContext, settings: Settings, client: Client) -> Json:
    if (answer := answer_of(ctx)) is not None:
        gateway_id, body = answer
        path = f"/v1/interactions/{segment(gateway_id)}/submit"
        return await client.post(path, body, event_id(ctx, settings.source))
    pipeline = settings.pipeline or await _pipeline(ctx)
    event = await with_uploads(envelope(ctx, settings.source, pipeline), client.upload)
    return await client.post("/v1/events", event, event["event_id"])


async def _pipeline(ctx: RunnerContext) -> str | None:
    """The pipeline of the run. The context does not name it; LangBot's record of the run does, as its agent."""
    try:
        async with asyncio.timeout(_PIPELINE_SECONDS):
            return (await ctx.api.run_get()).agent_id or None
    except Exception as error:
        text = "run %s: its pipeline is unknown, agents with filters.pipeline_id do not match: set `pipeline`: %s"
        log.warning(text, ctx.run_id, error)
        return None


async def _answer(ctx: RunnerContext, client: Client, run_id: str) -> AsyncGenerator[RunnerResult, None]:
    answers, actions, is_over = Answers(ctx, client), Actions(ctx, client), False
    try:
        async with contextlib.aclosing(client.follow(run_id)) as events:
            async for event in events:
                actions.take(event)
                results = await answers.take(event)
                is_over = event.get("type") in TERMINAL
                if is_over:
                    # LangBot takes no results after the terminal, and the SDK reports each platform call as one.
                    await actions.finish()
                for result in results:
                    yield result
    except EventsGoneError:
        is_over = True
        for result in answers.ended(await client.run(run_id)):
            yield result
    finally:
        await actions.finish()
        # LangBot's cancel and deadline close this generator.
        if not is_over:
            await client.cancel(run_id)
