"""Results of a plugin as the runner protocol has them. Pure: no I/O."""

import json
import re
import typing

from .payload import Payload, compact, mapping

TERMINAL = ("run.completed", "run.failed")
_EVENT_NAME = re.compile(r"[\w.]{1,64}")
# Scopes of state that belong to a part of the event.
_EVENT_SCOPES = ("conversation", "actor", "subject")


def failed(run_id: str, error: str, code: str, retryable: bool = False) -> Payload:
    """`run.failed`."""
    data = {"error": error, "code": code, "retryable": retryable}
    return {"run_id": run_id, "type": "run.failed", "data": data}


def completed(run_id: str) -> Payload:
    """`run.completed` of a runner that ended without a terminal result."""
    return {"run_id": run_id, "type": "run.completed", "data": {"finish_reason": "stop"}}


def message(run_id: str, content: typing.Any) -> Payload:
    """`message.completed` of the assistant."""
    body = {"role": "assistant", "content": content}
    return {"run_id": run_id, "type": "message.completed", "data": {"message": body, "file_ids": []}}


def note(run_id: str, text: str, level: str = "warning") -> Payload:
    """`processor.log`: a line for the ledger, never for the user."""
    return {"run_id": run_id, "type": "processor.log", "data": {"text": text, "level": level}}


def lacks_scope(result: Payload, context: Payload) -> bool:
    """True for state of a conversation, actor or subject that the event lacks: the gateway would reject it."""
    if result.get("type") != "state.updated":
        return False
    scope = mapping(result.get("data")).get("scope")
    return scope in _EVENT_SCOPES and not context.get(scope)


class Deltas:
    """Turns LangBot's snapshots into increments.

    LangBot puts the text so far into `content`, or an increment there and the text so far into `all_content`. The
    gateway takes increments. `all_content` is sent only after the runner rewrote its text, so that a long answer
    costs its length once and not once a delta.
    """

    def __init__(self) -> None:
        self._text = ""

    def rewrite(self, chunk: Payload) -> Payload:
        """The chunk of one `message.delta`."""
        chunk = compact(chunk)
        snapshot = chunk.pop("all_content", None)
        if snapshot is None:
            snapshot = chunk.get("content")
        if isinstance(snapshot, str) and snapshot:
            if snapshot.startswith(self._text):
                chunk["content"] = snapshot[len(self._text) :]
            else:
                chunk["content"], chunk["all_content"] = "", snapshot
            self._text = snapshot
        return chunk

    @property
    def text(self) -> str:
        """The text of the message so far."""
        return self._text

    def begins_another(self, chunk: Payload) -> bool:
        """True if the chunk has another text than the message so far. The end of a stream may repeat its text."""
        snapshot = chunk.get("all_content") or chunk.get("content")
        return isinstance(snapshot, str) and snapshot not in ("", self._text)

    def end(self) -> None:
        """Resets the text after a complete message: the next delta begins another message."""
        self._text = ""


class Outbox:
    """Converts each result of the runner to wire results: increments, and no line above the limit.

    The gateway ends a run whose line is too long, so a long text becomes several deltas. Other long results are
    shortened, or replaced by a line in the ledger.
    """

    def __init__(self, run_id: str, line_bytes: int) -> None:
        self._run_id = run_id
        # Leaves 1 KiB for the frame around the data.
        self._max_bytes = max(line_bytes - 1024, 1024)
        # A character has six bytes of JSON at most.
        self._piece = max(self._max_bytes // 8, 64)
        self._deltas = Deltas()
        # The runner has marked the deltas so far as a complete message.
        self._is_final = False
        # A complete message was sent: the gateway takes no text from later deltas.
        self._has_message = False

    def take(self, result: Payload) -> list[Payload]:
        """The results to send, without their numbers."""
        result = compact(result)
        if isinstance(result.get("usage"), dict):
            result["usage"] = compact(result["usage"])
        kind, data = result["type"], mapping(result.get("data"))
        if kind == "message.delta" and isinstance(data.get("chunk"), dict):
            chunk = data["chunk"]
            sent = self._finished() if self._is_final and self._deltas.begins_another(chunk) else []
            self._is_final = self._is_final or bool(chunk.get("is_final"))
            return sent + self._delta(result, data, self._deltas.rewrite(chunk))
        sent = self._open_messages(kind, data)
        if not self._is_long(result):
            if kind == "message.completed":
                self._close()
            return [*sent, result]
        if kind in ("message.completed", "run.completed"):
            return sent + self._long_message(result, data)
        return [*sent, self._shortened(result, data)]

    def _open_messages(self, kind: str, data: Payload) -> list[Payload]:
        """Messages of deltas that the next result would hide: the gateway prefers complete messages to deltas."""
        if kind not in ("message.completed", "run.completed"):
            return []
        given = data.get("message")
        text = _text_of(mapping(given))
        is_other = given is not None and not _is_same(text, self._deltas.text)
        sent = self._finished() if self._is_final and is_other else []
        if kind == "run.completed" and self._has_message and (self._deltas.text or sent):
            made = message(self._run_id, text if given is None else mapping(given).get("content"))
            if given is None:
                return sent + self._finished()
            if not self._is_long(made):
                self._close()
                sent.append(made)
        return sent

    def _finished(self) -> list[Payload]:
        """The message of the deltas so far. One above the limit stays deltas, to which the gateway appends."""
        made = message(self._run_id, self._deltas.text)
        if not self._deltas.text or self._is_long(made):
            self._is_final = False
            self._deltas.end()
            return []
        self._close()
        return [made]

    def _close(self) -> None:
        self._deltas.end()
        self._is_final, self._has_message = False, True

    def _delta(self, result: Payload, data: Payload, chunk: Payload) -> list[Payload]:
        if not self._is_long({**result, "data": {**data, "chunk": chunk}}):
            return [{**result, "data": {**data, "chunk": chunk}}]
        text = chunk.pop("all_content", None)
        content = chunk.get("content")
        if text is not None:
            # The first piece carries `all_content`, which replaces all text before it.
            first = text[: self._piece]
            head = {**chunk, "content": first, "all_content": first, "is_final": False}
            rest = {**chunk, "content": text[self._piece :]}
            return [_chunk(result, head), *self._pieces(result, rest)]
        if isinstance(content, str):
            return self._pieces(result, chunk)
        return [self._shortened(result, data)]

    def _pieces(self, result: Payload, chunk: Payload) -> list[Payload]:
        text = chunk["content"]
        starts = range(0, len(text), self._piece)
        pieces = [{"role": chunk["role"], "content": text[at : at + self._piece]} for at in starts]
        return [_chunk(result, piece) for piece in pieces] + [_chunk(result, {**chunk, "content": ""})]

    def _long_message(self, result: Payload, data: Payload) -> list[Payload]:
        # Without a `message.completed` the gateway makes the message of the deltas.
        payload = mapping(data.get("message"))
        chunk = self._deltas.rewrite({"role": payload.get("role") or "assistant", "content": _text_of(payload)})
        text = _chunk({"run_id": self._run_id, "type": "message.delta"}, chunk)
        sent = self._delta(text, text["data"], chunk)
        if result["type"] == "run.completed":
            rest = {name: value for name, value in data.items() if name != "message"}
            sent.append({**result, "data": rest})
        return sent

    def _shortened(self, result: Payload, data: Payload) -> Payload:
        if result["type"] == "tool.call.completed":
            text = json.dumps(data.get("result") or data.get("error"), ensure_ascii=False)
            excerpt = {"text": text[: self._piece], "truncated": True}
            call = {name: data.get(name) for name in ("tool_call_id", "tool_name")}
            return {**result, "data": {**call, "result": excerpt}}
        if result["type"] == "run.failed":
            error = str(data.get("error") or "")[: self._piece]
            return failed(self._run_id, error, str(data.get("code"))[:128], bool(data.get("retryable")))
        text = f"a result {str(result['type'])[:128]} was left out: it is longer than the line limit of a run"
        return note(self._run_id, text)

    def _is_long(self, result: Payload) -> bool:
        # Cheap before exact: most results are far below the limit.
        text = json.dumps(result, ensure_ascii=False, separators=(",", ":"))
        return len(text) * 4 > self._max_bytes and len(text.encode(errors="replace")) > self._max_bytes


def _text_of(payload: Payload) -> str:
    """The text of a message."""
    content = payload.get("content")
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _is_same(text: str, streamed: str) -> bool:
    """True if a complete message repeats the deltas. Runners trim it, or omit a part of it."""
    text, streamed = text.strip(), streamed.strip()
    return text in streamed or streamed in text


def _chunk(result: Payload, chunk: Payload) -> Payload:
    return {**result, "data": {"chunk": chunk}}


def wire(result: Payload) -> bytes:
    """A result as one server-sent event, in UTF-8."""
    text = json.dumps(result, ensure_ascii=False, separators=(",", ":"))
    kind = str(result["type"])
    name = f"event: {kind}\n" if _EVENT_NAME.fullmatch(kind) else ""
    # Halves of surrogate pairs have no UTF-8.
    return f"{name}id: {result['sequence']}\ndata: {text}\n\n".encode(errors="replace")
