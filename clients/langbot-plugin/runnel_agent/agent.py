"""One LangBot run: post the event, pass the answer on, cancel what nobody waits for."""

import contextlib
import logging
from collections.abc import AsyncGenerator

from langbot_plugin.api.entities.builtin.runner import RunnerContext, RunnerResult

from .answers import Answers
from .client import TERMINAL, Client, EventsGoneError, GatewayError
from .envelope import Json, answer_of, envelope, event_id, with_uploads
from .settings import ConfigError, Settings

log = logging.getLogger(__name__)

_NO_AGENT = (
    "no agent of Runnel answers this event: add one whose event_types and filters take it "
    "(`runnel explain` tells why none does)"
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
                # A live run has taken the message up, and answers it where it was begun.
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
        return await client.post(f"/v1/interactions/{gateway_id}/submit", body, event_id(ctx, settings.source))
    event = await with_uploads(envelope(ctx, settings.source), client.upload)
    return await client.post("/v1/events", event, event["event_id"])


async def _answer(ctx: RunnerContext, client: Client, run_id: str) -> AsyncGenerator[RunnerResult, None]:
    answers, is_over = Answers(ctx, client), False
    try:
        async with contextlib.aclosing(client.follow(run_id)) as events:
            async for event in events:
                results = await answers.take(event)
                is_over = event.get("type") in TERMINAL
                for result in results:
                    yield result
    except EventsGoneError:
        is_over = True
        for result in answers.ended(await client.run(run_id)):
            yield result
    finally:
        # LangBot's cancel and deadline close this generator.
        if not is_over:
            await client.cancel(run_id)
