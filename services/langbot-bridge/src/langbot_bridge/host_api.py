"""The SDK's handler: calls of a plugin become calls of the host API."""

import asyncio
import logging
import secrets
import typing
from collections.abc import AsyncIterator

from langbot_plugin.entities.io.errors import ActionCallError
from langbot_plugin.runtime.io.handler import Handler

from . import errors, files, results
from .actions import UNFINISHED, WAIT_SECONDS, ActionRequest, action_of
from .gateway_client import GatewayClient
from .limits import LIMITS
from .payload import Payload
from .replies import Reply, reply_of
from .routes import KeyFaultError, Route, is_own_run, path_of, route_of
from .run import Run, current_run

log = logging.getLogger(__name__)

# Options that the SDK asks for before it uses them.
_FEATURES = ["llm.reasoning_level"]
# Above one long poll.
_ACTION_SECONDS = 60.0
_RENEWAL_SECONDS = 15.0
_RENEWAL_PAUSE = 5.0


class HostApi(Handler):
    """Replaces the SDK's connection to LangBot.

    A call belongs to the run that it names, else to the run of the calling task. A call outside of any run is
    refused, since nothing grants it.
    """

    def __init__(self) -> None:
        # The SDK's own constructor wants a connection, and every method that uses it is replaced here.
        self.client = GatewayClient()
        self.runs: dict[str, Run] = {}

    async def call_action(
        self,
        action: typing.Any,
        data: Payload,
        timeout: float | None = 15.0,
        **_options: typing.Any,
    ) -> Payload:
        """One call. Raises the SDK's `ActionCallError` and its kin."""
        name = str(getattr(action, "value", action))
        run = self._run_of(name, data)
        if (answer := await self._own_answer(run, name, data)) is not None:
            return answer
        if (requested := action_of(name, data)) is not None and self._is_granted(run, requested):
            return await self._performed(run, name, requested)
        route = route_of(name, data)
        if route is None:
            raise errors.no_counterpart(name)
        try:
            return await self._answer(run, name, route, data, timeout)
        except ActionCallError as error:
            if route.absent is not None and errors.code_of(error) == "not_found":
                return dict(route.absent)
            raise self._seen(run, error) from error.__cause__

    async def call_action_generator(
        self,
        action: typing.Any,
        data: Payload,
        timeout: float = 15.0,
        **_options: typing.Any,
    ) -> AsyncIterator[Payload]:
        """A call with a stream of answers. `timeout` is the longest silence, as the SDK means it."""
        name = str(getattr(action, "value", action))
        run = self._run_of(name, data)
        route = route_of(name, data)
        if route is None or not name.endswith("_stream"):
            raise errors.no_counterpart(name)
        request = route.request(data)
        request["headers"] = {"accept": "text/event-stream"}
        path = _path(name, route, data)
        try:
            async for item in self.client.stream(run, name, route.method, path, timeout, **request):
                if "chunk" in item or "usage" in item:
                    yield item
        except ActionCallError as error:
            raise self._seen(run, error) from error.__cause__

    async def keep_token(self, run: Run) -> None:
        """Renews the run's token before it ends, for as long as this is awaited."""
        while (wait := run.renewal_in()) is not None:
            await asyncio.sleep(wait)
            try:
                moved = run.moved
                answer = await self.client.call(run, "token", "POST", "/token", _RENEWAL_SECONDS, json={})
                # The token of a resume replaces those of the attempt before it.
                if not moved.is_set():
                    run.replace_token(str(answer.json["token"]), answer.json["token_expires_at"])
            except Exception as error:
                log.warning("run %s: token not renewed, trying again in %s s: %s", run.id, _RENEWAL_PAUSE, error)
                await asyncio.sleep(_RENEWAL_PAUSE)

    async def say(self, run: Run, reply: Reply) -> None:
        """Sends what a handler of events replies as a message of its run."""
        if not reply.kind:
            return
        if reply.kind == "message.delta":
            chunk = {"role": "assistant", "content": reply.content}
            await run.put({"run_id": run.id, "type": reply.kind, "data": {"chunk": chunk}})
            return
        for result in await files.uploaded(results.message(run.id, reply.content), run, self.client):
            await run.put(result)

    async def _own_answer(self, run: Run, name: str, data: Payload) -> Payload | None:
        """The answer of calls that need no gateway."""
        if name == "get_langbot_version":
            return {"version": run.version, "api_features": _FEATURES}
        if name == "count_tokens" and not data["messages"] and not data.get("funcs"):
            return {"tokens": 0}
        if name == "run_append_result" and is_own_run(data):
            sent = await run.put(data["result"])
            return {"source": "runner", "sequence": 0, **sent}
        if name == "set_query_var":
            run.variables[str(data["key"])] = data.get("value")
            return {}
        if name == "get_query_var":
            return {"value": run.variables.get(str(data["key"]))}
        if name == "get_query_vars":
            return {"vars": dict(run.variables)}
        if name == "get_bot_uuid":
            return {"bot_uuid": _bot_of(run)}
        if (run.replies or name == "reply_message") and (reply := reply_of(name, data)):
            await self.say(run, reply)
            return {"result": {"sent": True}}
        return None

    @staticmethod
    def _is_granted(run: Run, requested: ActionRequest) -> bool:
        resources = run.context.get("resources") or {}
        return requested.action in (resources.get("platform_capabilities") or {})

    async def _performed(self, run: Run, name: str, requested: ActionRequest) -> Payload:
        """Requests a platform action, and waits until a program has performed it."""
        conversation = run.context.get("conversation") or {}
        if requested.chat_id not in (None, str(conversation.get("launcher_id"))):
            text = f"{name}: an action stays in the conversation of its event"
            raise errors.action_error(name, "invalid_argument", text)
        body = {**requested._asdict(), "idempotency_key": secrets.token_hex(16)}
        del body["chat_id"]
        try:
            answer = await self.client.call(run, name, "POST", "/platform/actions", _ACTION_SECONDS, json=body)
            path = f"/platform/actions/{answer.json['id']}"
            query = {"wait_seconds": str(WAIT_SECONDS)}
            while answer.json["status"] in UNFINISHED:
                answer = await self.client.call(run, name, "GET", path, _ACTION_SECONDS, params=query)
        except ActionCallError as error:
            raise self._seen(run, error) from error.__cause__
        action = answer.json
        if action["status"] == "done":
            return {"result": action.get("output") or {}}
        failure = action.get("error") or {}
        text = str(failure.get("message") or f"the platform action is {action['status']}")
        raise errors.action_error(name, str(failure.get("code") or action["status"]), text)

    async def _answer(
        self,
        run: Run,
        name: str,
        route: Route,
        data: Payload,
        timeout: float | None,
    ) -> Payload:
        path, request = _path(name, route, data), route.request(data)
        if route.is_keyed:
            request["headers"] = {"idempotency-key": secrets.token_hex(16)}
        answer = await self.client.call(run, name, route.method, path, timeout, **dict(request))
        try:
            mapped = route.response(answer)
            pages = 1
            while route.every_page and (cursor := answer.json.get("next_cursor")) and pages < LIMITS.key_pages:
                params = {**request.get("params", {}), "after_cursor": cursor}
                answer = await self.client.call(run, name, route.method, path, timeout, params=params)
                mapped["keys"] += route.response(answer)["keys"]
                pages += 1
        except (AttributeError, KeyError, TypeError) as error:
            text = f"{name}: the gateway's response does not fit the call"
            raise errors.action_error(name, "runtime_error", text) from error
        return mapped

    def _run_of(self, name: str, data: Payload) -> Run:
        run_id = data.get("run_id")
        run = self.runs.get(str(run_id)) if run_id else current_run.get()
        if run is None or run.is_over:
            text = f"{name} belongs to no live run: call it while a run is executed"
            raise errors.action_error(name, "not_found", text)
        return run

    @staticmethod
    def _seen(run: Run, error: ActionCallError) -> ActionCallError:
        """A waiting call often learns of a cancel before the cancel request arrives."""
        if errors.code_of(error) == "cancelled":
            run.cancel(LIMITS.cancel_grace_seconds)
        return error


def _path(name: str, route: Route, data: Payload) -> str:
    try:
        return path_of(route, data)
    except KeyFaultError as fault:
        raise errors.action_error(name, "invalid_argument", str(fault)) from fault


def _bot_of(run: Run) -> str:
    context = run.context
    event = context.get("event") or {}
    candidates = (
        (context.get("conversation") or {}).get("bot_id"),
        ((context.get("runtime") or {}).get("metadata") or {}).get("bot_id"),
        (event.get("data") or {}).get("bot_uuid"),
    )
    found = next((candidate for candidate in candidates if candidate), None)
    if found is None:
        raise errors.action_error("get_bot_uuid", "not_found", "the event names no bot")
    return str(found)
