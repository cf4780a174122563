"""A host API in memory that records its requests."""

import base64
import http.server
import json
import threading
import time
import typing
import urllib.parse

PAGE = {"items": [], "next_cursor": None, "prev_cursor": None, "has_more": False, "total_count": 0}
_APIS = [
    "prompt_get",
    "history_page",
    "history_search",
    "event_get",
    "event_page",
    "state",
    "storage",
    "steering_pull",
    "run_get",
    "run_list",
    "run_events_page",
    "run_cancel",
]
_RESULT = {"role": "assistant", "content": "I say hello"}
_USAGE = {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}


class FakeGateway:
    """Serves until it is closed."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.values: dict[str, typing.Any] = {}
        self.blobs: dict[str, bytes] = {}
        self.artifacts: dict[str, tuple[bytes, str]] = {}
        self.steered: list[dict[str, typing.Any]] = []
        self.refuses: dict[str, tuple[int, dict[str, typing.Any]]] = {}
        self.cancel_requested_at: int | None = None
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/host/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def paths(self) -> list[str]:
        return [f"{method} {path}" for method, path, _, _ in self.requests]

    def body_of(self, call: str) -> typing.Any:
        """The last body of a call such as `POST /steering/pull`."""
        bodies = [body for method, path, _, body in self.requests if f"{method} {path}" == call]
        return json.loads(bodies[-1])

    def apis(self) -> dict[str, bool]:
        return dict.fromkeys(_APIS, True)

    def resources(self) -> dict[str, typing.Any]:
        return {
            "models": [
                {"model_id": "small", "operations": ["invoke", "stream", "count_tokens"]},
                {"model_id": "ranker", "operations": ["rerank"]},
                {"model_id": "embedder", "operations": ["invoke"]},
            ],
            "tools": [{"tool_name": "get_current_time", "operations": ["detail", "call"], "source": "gateway"}],
            "knowledge_bases": [{"kb_id": "notes", "kb_name": "Notes", "operations": ["list", "retrieve"]}],
            "storage": {"plugin_storage": True, "workspace_storage": True, "binding_storage": False},
        }

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[int, typing.Any, str]:
        url = urllib.parse.urlsplit(target)
        path = url.path.removeprefix("/host/v1")
        query = dict(urllib.parse.parse_qsl(url.query))
        self.requests.append((method, path, headers, body))
        if path in self.refuses:
            status, error = self.refuses[path]
            return status, {"error": error}, "application/json"
        if (stored := self._stored(method, path, query, body, headers)) is not None:
            return stored
        return self._fixed(method, path)

    def _stored(
        self, method: str, path: str, query: dict[str, str], body: bytes, headers: dict[str, str]
    ) -> tuple[int, typing.Any, str] | None:
        parent, _, key = path.rpartition("/")
        if path.startswith("/state/"):
            if path.count("/") == 2:
                keys = [name.rpartition("/")[2] for name in self.values if name.startswith(path)]
                return 200, {"keys": keys, "has_more": False}, "application/json"
            if method == "PUT":
                self.values[path] = json.loads(body)["value"]
                return 200, {"version": 1}, "application/json"
            if path not in self.values:
                return _missing()
            if method == "DELETE":
                del self.values[path]
                return 204, None, ""
            return 200, {"value": self.values[path], "version": 1}, "application/json"
        if path.startswith("/storage/"):
            if path.count("/") == 2:
                keys = [urllib.parse.unquote(name.rpartition("/")[2]) for name in self.blobs if name.startswith(path)]
                # Two pages, so that a caller has to request the second one.
                page = {"keys": keys, "has_more": True, "next_cursor": "2"}
                last = {"keys": ["last"], "has_more": False, "next_cursor": None}
                return 200, last if "after_cursor" in query else page, "application/json"
            if method == "PUT":
                self.blobs[path] = body
                return 204, None, ""
            if path not in self.blobs:
                return _missing()
            if method == "DELETE":
                del self.blobs[path]
                return 204, None, ""
            return 200, self.blobs[path], "application/octet-stream"
        if path == "/artifacts":
            made = f"a-{len(self.artifacts)}"
            self.artifacts[made] = body, headers.get("content-type", "")
            return 201, {"artifact_id": made, "name": query["name"], "size": len(body)}, "application/json"
        if parent.startswith("/artifacts/") and key == "content":
            found = self.artifacts.get(parent.removeprefix("/artifacts/"))
            return (200, *found) if found else _missing()
        return None

    def _fixed(self, method: str, path: str) -> tuple[int, typing.Any, str]:
        run = {"run_id": "r", "status": "running", "cancel_requested_at": self.cancel_requested_at}
        event = {"event_id": "e-1", "event_type": "message.received", "source": "api", "created_at": 1}
        items, self.steered = (self.steered, []) if path == "/steering/pull" else ([], self.steered)
        made: dict[str, typing.Any] = {
            "POST /token": {"token": f"renewed-{time.time()}", "token_expires_at": int(time.time()) + 600},
            "GET /prompt": {"prompt": [{"role": "system", "content": "Be brief."}]},
            "GET /models": {"models": self.resources()["models"]},
            "POST /models/small/invoke": {"message": _RESULT, "usage": _USAGE},
            "POST /models/small/count-tokens": {"tokens": 7},
            "POST /models/ranker/rerank": {"results": [{"index": 0, "relevance_score": 0.9}]},
            "POST /models/embedder/embed": {"vectors": [[0.5, 1.0]]},
            "GET /tools": {"tools": self.resources()["tools"]},
            "GET /tools/get_current_time": {"tool": {"tool_name": "get_current_time", "parameters": {}}},
            "POST /tools/get_current_time/call": {"result": "12:00"},
            "GET /knowledge-bases": {"knowledge_bases": self.resources()["knowledge_bases"]},
            "POST /knowledge-bases/notes/retrieve": {"results": [{"content": [{"type": "text", "text": "brie"}]}]},
            "GET /history": PAGE,
            "POST /history/search": {"items": [], "total_count": 0, "query": "hello"},
            "GET /events/e-1": event,
            "GET /events": {**PAGE, "items": [event]},
            "POST /steering/pull": {"items": items},
            "GET /run": run,
            "GET /runs": {**PAGE, "items": [run]},
            "GET /run/events": PAGE,
            "POST /run/cancel": run,
        }
        if f"{method} {path}" == "POST /models/small/stream":
            chunks = [{"chunk": {"role": "assistant", "content": word}} for word in ("I ", "say")]
            items = [*chunks, {"chunk": {"role": "assistant", "is_final": True}}, {"usage": _USAGE}]
            text = "".join(f"event: chunk\ndata: {json.dumps(item)}\n\n" for item in items)
            return 200, text.encode(), "text/event-stream"
        found = made.get(f"{method} {path}")
        return (200, found, "application/json") if found is not None else _missing()


def _missing() -> tuple[int, typing.Any, str]:
    error = {"code": "not_found", "message": "there is none", "retryable": False, "details": {"reason": "none"}}
    return 404, {"error": error}, "application/json"


def _handler(gateway: FakeGateway) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, made, kind = gateway.answer(self.command, self.path, headers, body)
            content = b"" if made is None else made if isinstance(made, bytes) else json.dumps(made).encode()
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = _answer

        def log_message(self, format: str, *_arguments: object) -> None:
            pass

    return Handler


def data_url(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
