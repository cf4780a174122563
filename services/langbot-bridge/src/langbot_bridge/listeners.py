"""EventListener components as runners: an event goes to the handlers that LangBot would call."""

import itertools
import logging
import typing
from collections.abc import AsyncIterator

from langbot_plugin.api.definition.components.common.event_listener import EventListener
from langbot_plugin.api.entities import events as sdk_events
from langbot_plugin.api.entities.builtin.platform import events as platform_events
from langbot_plugin.api.entities.builtin.provider.session import LauncherTypes
from langbot_plugin.api.entities.builtin.runner import RunnerContext, RunnerResult
from langbot_plugin.api.proxies.event_context import EventContextProxy
from langbot_plugin.runtime.io.handler import Handler

from . import events

log = logging.getLogger(__name__)

Event: typing.TypeAlias = sdk_events.BaseEventModel
_EventClass: typing.TypeAlias = type[Event]
_event_numbers = itertools.count(1)

# Events of LangBot's pipeline for one message, in order: before and after it decides to answer.
_OF_A_MESSAGE: dict[str, tuple[_EventClass, _EventClass]] = {
    "private": (sdk_events.PersonMessageReceived, sdk_events.PersonNormalMessageReceived),
    "group": (sdk_events.GroupMessageReceived, sdk_events.GroupNormalMessageReceived),
}
_MESSAGES = {cls for pair in _OF_A_MESSAGE.values() for cls in pair}


def _classes_by_platform_event() -> dict[type[platform_events.EBAEvent], typing.Any]:
    """The SDK's event for each platform event: it names it in its field `platform_event`."""
    found: dict[type[platform_events.EBAEvent], typing.Any] = {}
    classes: list[typing.Any] = [cls for cls in vars(sdk_events).values() if isinstance(cls, type)]
    for cls in classes:
        if hasattr(cls, "from_platform_event"):
            for kind in typing.get_args(cls.model_fields["platform_event"].annotation):
                if kind is not type(None):
                    found[kind] = cls
    return found


_BY_PLATFORM_EVENT = _classes_by_platform_event()


class Listener:
    """Has `invoke` as the SDK's `Runner` has it."""

    def __init__(self, listener: EventListener, handler: Handler) -> None:
        self._listener, self._handler = listener, handler

    def patterns(self) -> list[str]:
        """The types of the events that it has handlers for."""
        found = set()
        for cls in self._listener.registered_handlers:
            if cls in _MESSAGES:
                found.add(events.MESSAGE)
            for kind, wrapper in _BY_PLATFORM_EVENT.items():
                if wrapper is cls:
                    found.add(str(kind.model_fields["type"].default))
        return sorted(found) or ["*"]

    async def invoke(self, ctx: RunnerContext) -> AsyncIterator[RunnerResult]:
        """Calls the handlers. What they reply is sent while they work."""
        event = events.platform_event(ctx.model_dump(mode="json"))
        called = 0
        for made in _sdk_events(event):
            context = await self._emit(made, called)
            if context is None:
                continue
            called += 1
            if context.is_prevented_default():
                if reply := getattr(context.event, "reply_message_chain", None):
                    await context.reply(reply)
                break
        if not called:
            text = f"no handler of this listener takes {ctx.event.event_type}"
            yield RunnerResult(run_id=ctx.run_id, type="processor.log", data={"text": text, "level": "info"})
        yield RunnerResult.run_completed(ctx.run_id)

    async def _emit(self, event: Event, number: int) -> typing.Any:
        handlers = self._listener.registered_handlers.get(type(event))
        if not handlers:
            return None
        context = EventContextProxy(
            # Calls of the context name no run: the host API takes it from the current task.
            query_id=number,
            eid=next(_event_numbers),
            event_name=type(event).__name__,
            event=event,
            plugin_runtime_handler=self._handler,
        )
        for handler in handlers:
            await handler(context)
        return context


def _sdk_events(event: platform_events.EBAEvent) -> typing.Iterator[Event]:
    wrapper = _BY_PLATFORM_EVENT.get(type(event))
    if wrapper is not None:
        yield wrapper.from_platform_event(event)
    if not isinstance(event, platform_events.MessageReceivedEvent):
        return
    kind = event.chat_type.value
    launcher = LauncherTypes.GROUP if kind == "group" else LauncherTypes.PERSON
    for cls in _OF_A_MESSAGE[kind]:
        fields: dict[str, typing.Any] = {
            "launcher_type": launcher.value,
            "launcher_id": event.chat_id,
            "sender_id": event.sender.id,
            # Dumped: the SDK's own validators rebuild the components of a chain.
            "message_event": event.to_legacy_event().model_dump(),
            "message_chain": event.message_chain.model_dump(),
        }
        if "text_message" in cls.model_fields:
            fields["text_message"] = events.text_of(event.message_chain)
        yield cls(**fields)
