"""Route table: actions of the SDK as calls of the host API. Pure: no I/O.

An action that is not here has no counterpart; the SDK raises its own error for it.
"""

import base64
import re
import typing
from urllib.parse import quote

from .payload import Payload, mapping

Mapper = typing.Callable[[Payload], Payload]


class KeyFaultError(Exception):
    """A key that would leave its path, such as `..`. The message asks for another name."""


class Answer(typing.NamedTuple):
    """An answer of the host API."""

    body: bytes
    json: typing.Any


class Route(typing.NamedTuple):
    """One call of the host API, relative to its base URL."""

    method: str
    # `{names}` are fields of the SDK's payload; each becomes one segment.
    path: str
    request: Mapper = lambda _payload: {}
    response: typing.Callable[[Answer], Payload] = lambda answer: mapping(answer.json)
    # The answer to a 404; without one the error is raised.
    absent: Payload | None = None
    # The SDK's call has no cursor: follow `next_cursor` and join `keys`.
    every_page: bool = False
    # The gateway executes it once for an idempotency key, so a broken call is repeated.
    is_keyed: bool = False


def path_of(route: Route, payload: Payload) -> str:
    """The path with its names filled in and percent-encoded."""

    def segment(match: re.Match[str]) -> str:
        value = str(payload[match[1]])
        if value in ("", ".", ".."):
            raise KeyFaultError(f"`{value}` is no key: use another name")
        return quote(value, safe="")

    return re.sub(r"{(\w+)}", segment, route.path)


def is_own_run(payload: Payload) -> bool:
    """True if a call about runs targets the calling run."""
    return payload.get("target_run_id") in (None, payload.get("run_id"))


def _some(payload: Payload, names: typing.Iterable[str]) -> Payload:
    return {name: payload[name] for name in names if payload.get(name) is not None}


def _body(*names: str) -> Mapper:
    return lambda payload: {"json": _some(payload, names)}


def _query(*names: str) -> Mapper:
    def text(value: typing.Any) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        return ",".join(map(str, value)) if isinstance(value, list) else str(value)

    return lambda payload: {"params": {name: text(value) for name, value in _some(payload, names).items()}}


def _question(payload: Payload) -> Payload:
    functions = payload.get("funcs") or []
    tools = [{name: one.get(name) for name in ("name", "description", "parameters")} for one in functions]
    return {"messages": payload["messages"], "tools": tools}


def _llm(payload: Payload) -> Payload:
    return {"json": {**_some(payload, ("extra_args", "remove_think", "reasoning_level")), **_question(payload)}}


def _counted(payload: Payload) -> Payload:
    return {"json": {**_some(payload, ("extra_args",)), **_question(payload)}}


def _rerank(payload: Payload) -> Payload:
    request = _some(payload, ("query", "documents", "top_k"))
    extra = payload.get("extra_args")
    return {"json": {**request, **({"extra_args": extra} if extra else {})}}


def _state(payload: Payload) -> Payload:
    return {"json": {"value": payload.get("value")}}


def _blob(payload: Payload) -> Payload:
    content = base64.b64decode(payload["value_base64"])
    return {"data": content, "headers": {"content-type": "application/octet-stream"}}


def _steering(payload: Payload) -> Payload:
    mode = "all" if payload.get("mode", "all") == "all" else "one-at-a-time"
    return {"json": {"mode": mode, **_some(payload, ("limit",))}}


def _under(key: str, *, named: str = "", each: str = "") -> typing.Callable[[Answer], Payload]:
    """`{key: …}` of an answer that has it under `key` or `named`, or is a page; of its items the member `each`."""

    def mapper(answer: Answer) -> Payload:
        found = answer.json
        if isinstance(found, dict):
            found = found.get(named or key, found.get("items", found))
        if each and isinstance(found, list):
            found = [item.get(each) if isinstance(item, dict) else item for item in found]
        return {key: found}

    return mapper


def _keys(answer: Answer) -> Payload:
    return {**_under("keys", each="key")(answer), "has_more": bool(answer.json.get("has_more"))}


def _knowledge_bases(answer: Answer) -> Payload:
    bases = answer.json["knowledge_bases"]
    made = [
        {
            "uuid": base["kb_id"],
            "name": base.get("kb_name") or base["kb_id"],
            "description": base.get("description") or "",
            "type": base.get("kb_type"),
        }
        for base in bases
    ]
    return {"knowledge_bases": made}


def _tool_detail(answer: Answer) -> Payload:
    tool = mapping(answer.json).get("tool")
    found = mapping(tool)
    return {"tool": {**found, "name": found.get("tool_name", found.get("name"))}}


def _done(_answer: Answer) -> Payload:
    return {"success": True}


def _blob_of(answer: Answer) -> Payload:
    return {"value_base64": base64.b64encode(answer.body).decode()}


def _storage(area: str) -> dict[str, Route]:
    one, many = f"/storage/{area}/{{key}}", f"/storage/{area}"
    return {
        f"set_{area}_storage": Route("PUT", one, _blob, _done),
        f"get_{area}_storage": Route("GET", one, response=_blob_of),
        f"get_{area}_storage_keys": Route("GET", many, _query("prefix", "limit"), _keys, every_page=True),
        f"delete_{area}_storage": Route("DELETE", one, response=_done),
    }


_RETRIEVE = Route(
    "POST",
    "/knowledge-bases/{kb_id}/retrieve",
    _body("query_text", "top_k", "filters"),
    _under("results"),
)

ROUTES: dict[str, Route] = {
    "get_prompt": Route("GET", "/prompt", response=_under("prompt"), absent={"prompt": []}),
    "get_llm_models": Route("GET", "/models", response=_under("llm_models", named="models", each="model_id")),
    "invoke_llm": Route("POST", "/models/{llm_model_uuid}/invoke", _llm),
    "invoke_llm_stream": Route("POST", "/models/{llm_model_uuid}/stream", _llm),
    "count_tokens": Route("POST", "/models/{llm_model_uuid}/count-tokens", _counted),
    "invoke_rerank": Route("POST", "/models/{rerank_model_uuid}/rerank", _rerank),
    "invoke_embedding": Route("POST", "/models/{embedding_model_uuid}/embed", _body("texts")),
    "list_tools": Route("GET", "/tools", response=_under("tools")),
    "get_tool_detail": Route("GET", "/tools/{tool_name}", response=_tool_detail),
    "call_tool": Route("POST", "/tools/{tool_name}/call", _body("parameters"), is_keyed=True),
    "list_knowledge_bases": Route("GET", "/knowledge-bases", response=_knowledge_bases),
    "list_pipeline_knowledge_bases": Route("GET", "/knowledge-bases", response=_knowledge_bases),
    "retrieve_knowledge_base": _RETRIEVE,
    "retrieve_knowledge": _RETRIEVE,
    "history_page": Route(
        "GET",
        "/history",
        _query("conversation_id", "before_cursor", "after_cursor", "limit", "direction", "include_attachments"),
    ),
    "history_search": Route("POST", "/history/search", _body("query", "filters", "top_k")),
    "event_get": Route("GET", "/events/{event_id}"),
    "event_page": Route("GET", "/events", _query("conversation_id", "event_types", "before_cursor", "limit")),
    "steering_pull": Route("POST", "/steering/pull", _steering),
    "state_get": Route("GET", "/state/{scope}/{key}", response=_under("value"), absent={"value": None}),
    "state_set": Route("PUT", "/state/{scope}/{key}", _state, _done),
    "state_delete": Route("DELETE", "/state/{scope}/{key}", response=_done, absent={"success": False}),
    "state_list": Route("GET", "/state/{scope}", _query("prefix", "limit"), _keys),
    **_storage("plugin"),
    **_storage("workspace"),
    "run_get": Route("GET", "/runs/{target_run_id}"),
    "run_list": Route("GET", "/runs", _query("conversation_id", "statuses", "before_cursor", "limit")),
    "run_events_page": Route(
        "GET",
        "/runs/{target_run_id}/events",
        _query("before_cursor", "after_cursor", "limit", "direction"),
    ),
    "run_cancel": Route("POST", "/runs/{target_run_id}/cancel", _body("reason")),
}

# Routes for the calling run itself, which need no conversation.
OWN_RUN: dict[str, Route] = {
    "run_get": Route("GET", "/run"),
    "run_events_page": ROUTES["run_events_page"]._replace(path="/run/events"),
    "run_cancel": ROUTES["run_cancel"]._replace(path="/run/cancel"),
}


def route_of(action: str, payload: Payload) -> Route | None:
    """The call for an action, or `None` when the host API has none."""
    if action in OWN_RUN and is_own_run(payload):
        return OWN_RUN[action]
    return ROUTES.get(action)
