"""Platform actions of a run: claimed from the gateway, performed by LangBot's platform adapter, and reported."""

import asyncio
import logging
import typing

from langbot_plugin.api.entities.builtin.platform.message import MessageChain, Plain
from langbot_plugin.api.entities.builtin.runner import RunnerContext

from .client import Client, GatewayError, segment
from .media import Json

log = logging.getLogger(__name__)

_APPROVAL_PAUSE = 2.0
# Above LangBot's own limit of a call of its platform, so that its answer comes first.
_LEASE_SECONDS = 200
_FINISH_SECONDS = 15.0
_MAX_ACTIONS = 32
_MESSAGE_CHARS = 2000


class UnsupportedError(Exception):
    """LangBot has no such action, or not for this conversation."""


def call_of(action: Json) -> tuple[str, str, Json]:
    """The bot, the method of LangBot's platform adapter and its parameters for a claimed action."""
    event = action.get("event") or {}
    conversation = event.get("conversation") or {}
    bot, kind, chat = event.get("bot_id"), conversation.get("launcher_type"), conversation.get("launcher_id")
    if not bot or not kind or not chat:
        raise UnsupportedError("the event has no bot or no conversation of LangBot")
    target, payload, name = action["target"], action["payload"], action["action"]
    chat_of: Json = {"chat_type": kind, "chat_id": chat}
    if name == "message.send":
        return bot, "send_message", {"target_type": kind, "target_id": chat, "message": _chain(payload["text"])}
    if name == "message.edit":
        return bot, "edit_message", {**chat_of, **target, "new_content": _chain(payload["text"])}
    if name == "message.recall":
        return bot, "delete_message", {**chat_of, **target}
    if name == "friend_request.answer":
        return bot, "approve_friend_request", {**target, **payload}
    if name == "group_invite.answer":
        return bot, "approve_group_invite", {**target, **payload}
    if kind != "group":
        raise UnsupportedError(f"{name} needs a group")
    if name == "group.rename":
        return bot, "set_group_name", {"group_id": chat, **payload}
    if name == "group.leave":
        return bot, "leave_group", {"group_id": chat}
    if name == "member.mute":
        return bot, "mute_member", {"group_id": chat, **target, "duration": payload.get("duration_seconds", 0)}
    if name == "member.unmute":
        return bot, "unmute_member", {"group_id": chat, **target}
    if name == "member.kick":
        return bot, "kick_member", {"group_id": chat, **target}
    raise UnsupportedError(f"LangBot has no action for {name}")


def _chain(text: str) -> typing.Any:
    return MessageChain([Plain(text=text)]).model_dump(mode="json")


class Actions:
    """Performs the actions of one run beside its stream, each at most once."""

    def __init__(self, ctx: RunnerContext, client: Client) -> None:
        self._ctx, self._client = ctx, client
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # Actions that a person has not approved yet.
        self._waiting: set[str] = set()

    def take(self, event: Json) -> None:
        """Starts the action of an event of the ledger, if it has one."""
        action_id = ((event.get("metadata") or {}).get("action") or {}).get("id")
        if event.get("type") == "action.requested" and action_id and len(self._tasks) < _MAX_ACTIONS:
            self._tasks[str(action_id)] = asyncio.create_task(self._perform(str(action_id)))

    async def finish(self) -> None:
        """Waits for open actions. Those that wait for a person's approval stay with the gateway."""
        for action_id in self._waiting:
            self._tasks[action_id].cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=_FINISH_SECONDS)

    async def _perform(self, action_id: str) -> None:
        path = f"/v1/actions/{segment(action_id)}"
        try:
            if not await self._is_open(action_id, path):
                return
            claim = await self._client.act(f"{path}/claim", {"lease_seconds": _LEASE_SECONDS})
            result = await self._call(claim["action"])
            await self._client.act(f"{path}/result", {"claim_token": claim["claim_token"], **result})
        except GatewayError as error:
            # Another program has claimed it, or it has expired.
            log.warning("platform action %s was not performed: %s", action_id, error)

    async def _is_open(self, action_id: str, path: str) -> bool:
        """Waits for a person's approval. False: the action is not to be performed."""
        while True:
            status = (await self._client.get(path)).get("status")
            if status != "awaiting_approval":
                self._waiting.discard(action_id)
                return bool(status == "open")
            self._waiting.add(action_id)
            await asyncio.sleep(_APPROVAL_PAUSE)

    async def _call(self, action: Json) -> Json:
        try:
            bot, method, parameters = call_of(action)
            found = await self._ctx.api.call_platform_api(bot, method, parameters)
        except UnsupportedError as error:
            return _failed("unsupported", error)
        except Exception as error:
            code = "unsupported" if "not support" in str(error).lower() else "platform_error"
            return _failed(code, error)
        return {"status": "done", "output": found if isinstance(found, dict) else {"result": found}}


def _failed(code: str, error: Exception) -> Json:
    message = (str(error) or type(error).__name__)[:_MESSAGE_CHARS]
    return {"status": "failed", "error": {"code": code, "message": message}}
