"""Events of a run as results of LangBot's runner."""

import base64
import logging
import typing

import httpx
import pydantic
from langbot_plugin.api.entities.builtin.provider.message import ContentElement, Message, MessageChunk
from langbot_plugin.api.entities.builtin.runner import InteractionRequest, RunnerContext, RunnerResult

from .client import Client, GatewayError
from .envelope import question_id
from .media import Json

log = logging.getLogger(__name__)

_PASSED = ("tool.call.started", "tool.call.completed")
_MAX_FILES = 20


class Answers:
    """Turns increments into LangBot's snapshots, artifacts into files, questions into LangBot's own."""

    def __init__(self, ctx: RunnerContext, client: Client) -> None:
        self._run_id, self._client = ctx.run_id, client
        self._streams = ctx.delivery.supports_streaming
        self._asks = ctx.delivery.interactions is not None
        self._text, self._is_final = "", True
        self._files: list[Json] = []

    async def take(self, event: Json) -> list[RunnerResult]:
        """The results for one event of the ledger."""
        kind, data = str(event.get("type")), event.get("data") or {}
        try:
            if kind == "message.delta":
                return self._delta(data["chunk"])
            if kind == "message.completed":
                self._text, self._is_final = "", True
                return [RunnerResult.message_completed(self._run_id, await self._message(data["message"]))]
            if kind == "artifact.created" and len(self._files) < _MAX_FILES:
                self._files.append(data)
            if kind == "action.requested" and self._asks:
                return self._question(event, data)
            if kind in _PASSED:
                return [self._tool_call(kind, data)]
            if kind == "run.completed":
                return await self._completed(event, data)
            if kind == "run.failed":
                return [self._failed(event, data)]
        except (pydantic.ValidationError, KeyError, TypeError) as error:
            log.warning("event %s of type %s left out: %s", event.get("sequence"), kind, error)
        return []

    def ended(self, run: Json) -> list[RunnerResult]:
        """The results for a run whose events are no longer kept."""
        if run.get("status") != "completed":
            reason = str(run.get("status_reason") or run.get("status"))
            return [RunnerResult.run_failed(self._run_id, f"the run ended as {reason}", "runnel.ended")]
        content = (run.get("output") or {}).get("content")
        message = Message(role="assistant", content=content) if isinstance(content, str) else None
        return [RunnerResult.run_completed(self._run_id, message)]

    def _delta(self, chunk: Json) -> list[RunnerResult]:
        content = chunk.get("content")
        if isinstance(chunk.get("all_content"), str):
            self._text = chunk["all_content"]
        elif isinstance(content, str):
            self._text += content
        if not self._streams:
            return []
        self._is_final = bool(chunk.get("is_final"))
        calls = {"tool_calls": chunk["tool_calls"]} if chunk.get("tool_calls") else {}
        if isinstance(content, list):
            made = MessageChunk(role=chunk["role"], content=content, **calls)
        else:
            made = MessageChunk(role=chunk["role"], content=self._text, is_final=self._is_final, **calls)
        return [RunnerResult.message_delta(self._run_id, made)]

    async def _completed(self, event: Json, data: Json) -> list[RunnerResult]:
        made = []
        if self._text and not self._is_final:
            # No complete message arrived: LangBot shows the deltas, once the last one is marked final.
            last = MessageChunk(role="assistant", content=self._text, is_final=True)
            made.append(RunnerResult.message_delta(self._run_id, last))
        message = await self._message(data["message"]) if data.get("message") else None
        if message is None and self._text and not self._streams:
            message = Message(role="assistant", content=self._text)
        if message is None and self._files:
            made.append(RunnerResult.message_completed(self._run_id, await self._message({"role": "assistant"})))
        reason = str(data.get("finish_reason") or "stop")
        made.append(RunnerResult.run_completed(self._run_id, message, reason, usage=event.get("usage")))
        return made

    def _failed(self, event: Json, data: Json) -> RunnerResult:
        text = str(data.get("message") or data.get("error") or "the run failed")
        return RunnerResult.run_failed(
            self._run_id, text, data.get("code"), bool(data.get("retryable")), usage=event.get("usage")
        )

    def _tool_call(self, kind: str, data: Json) -> RunnerResult:
        if kind == "tool.call.started":
            parameters = data.get("parameters") or {}
            return RunnerResult.tool_call_started(self._run_id, data["tool_call_id"], data["tool_name"], parameters)
        result = data.get("result")
        made = result if result is None or isinstance(result, dict) else {"result": result}
        return RunnerResult.tool_call_completed(
            self._run_id, data["tool_call_id"], data["tool_name"], made, data.get("error")
        )

    def _question(self, event: Json, data: Json) -> list[RunnerResult]:
        gateway_id = ((event.get("metadata") or {}).get("interaction") or {}).get("id")
        if data.get("action") != "interaction.requested" or not gateway_id:
            return []
        question = data.get("payload") or {}
        made = question_id(str(gateway_id), str(question.get("interaction_id")))
        if made is None:
            return []
        fields = {name: value for name, value in question.items() if name in InteractionRequest.model_fields}
        request = InteractionRequest.model_validate({**fields, "interaction_id": made})
        return [RunnerResult.interaction_requested(self._run_id, request)]

    async def _message(self, message: Json) -> Message:
        content = message.get("content")
        parts: list[Json] = list(content) if isinstance(content, list) else []
        announced, self._files = {str(one["artifact_id"]): one for one in self._files}, []
        made: list[ContentElement] = []
        for part in parts:
            reference = (part.get("image_url") or {}).get("url") or part.get("file_url") or ""
            if str(reference).startswith("artifact:"):
                artifact_id = str(reference).removeprefix("artifact:")
                artifact = announced.pop(artifact_id, {})
                name = part.get("file_name") or artifact.get("name") or "file"
                made.append(await self._file(artifact_id, str(name)))
            else:
                made.append(ContentElement.model_validate(part))
        if not made and not announced:
            return Message(role=message["role"], content=content)
        if isinstance(content, str) and content:
            made.insert(0, ContentElement.from_text(content))
        made += [await self._file(one, str(artifact.get("name") or "file")) for one, artifact in announced.items()]
        return Message(role=message["role"], content=made)

    async def _file(self, artifact_id: str, name: str) -> ContentElement:
        try:
            content, kind = await self._client.download(artifact_id)
        except (GatewayError, httpx.HTTPError) as error:
            log.warning("artifact %s was not read: %s", artifact_id, error)
            return ContentElement.from_text(f"(The file {name} could not be read: {error}.)")
        encoded = f"data:{kind};base64,{base64.b64encode(content).decode()}"
        if kind.startswith("image/"):
            return ContentElement.from_image_base64(encoded)
        fields: dict[str, typing.Any] = {"type": "file_base64", "file_base64": encoded, "file_name": name}
        return ContentElement(**fields)
