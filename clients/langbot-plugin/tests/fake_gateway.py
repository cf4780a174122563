"""A gateway with scripted responses and scripted faults."""

import http.server
import json
import threading
import typing

RUN = "01a20468-f8ea-76a6-9b32-32089ce69a5c"


class FakeGateway:
    """One run with these events, `cut_after` of which break the connection."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.accepted: dict[str, typing.Any] = {"event_id": "e", "run_id": RUN, "status": "created"}
        self.run = {"run_id": RUN, "status": "completed", "output": {"role": "assistant", "content": "kept"}}
        self.events: list[dict[str, typing.Any]] = []
        # Sequences after which the stream breaks, each once.
        self.cuts: list[int] = []
        # Answers before the good ones: a status and headers, or `None` for a broken connection.
        self.faults: list[tuple[int, dict[str, str]] | None] = []
        # Statuses of streams before the good ones.
        self.stream_faults: list[int] = []
        self.gone = False
        # The stream stays open after its events.
        self.open = threading.Event()
        self.open.set()
        self.artifacts: dict[str, tuple[bytes, str]] = {}
        # Platform actions by id.
        self.actions: dict[str, dict[str, typing.Any]] = {}
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.open.set()
        self._server.shutdown()
        self._server.server_close()

    def tell(self, *events: tuple[str, dict[str, typing.Any]], **last: typing.Any) -> None:
        for number, (kind, data) in enumerate(events, 1):
            made = {"run_id": RUN, "sequence": number, "type": kind, "data": data, "created_at": 1, "source": "runner"}
            self.events.append(made)
        self.events[-1].update(last)

    def calls(self, path: str) -> list[tuple[dict[str, str], bytes]]:
        return [(headers, body) for line, headers, body in self.requests if line == path]

    def posted(self) -> dict[str, typing.Any]:
        return json.loads(self.calls("POST /v1/events")[-1][1])


def _handler(gateway: FakeGateway) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            path = self.path.partition("?")[0]
            headers = {name.lower(): value for name, value in self.headers.items()}
            gateway.requests.append((f"{self.command} {path}", headers, body))
            if gateway.faults:
                return self._fault(gateway.faults.pop(0))
            if path == f"/v1/runs/{RUN}/events":
                return self._stream(int(headers.get("last-event-id") or 0))
            if path == "/v1/artifacts":
                made = f"a-{len(gateway.artifacts)}"
                gateway.artifacts[made] = body, headers["content-type"]
                return self._send(201, json.dumps({"artifact_id": made}).encode(), "application/json")
            if path.startswith("/v1/artifacts/"):
                found = gateway.artifacts.get(path.split("/")[3])
                return self._send(200, *found) if found else self._send(404, b"", "")
            if path.startswith("/v1/actions/"):
                return self._action(path.split("/"))
            responses: dict[str, typing.Any] = {
                "POST /v1/events": (202, gateway.accepted),
                "POST /v1/interactions/q-1/submit": (202, gateway.accepted),
                f"GET /v1/runs/{RUN}": (200, gateway.run),
                f"POST /v1/runs/{RUN}/cancel": (202, gateway.run),
            }
            status, made = responses[f"{self.command} {path}"]
            return self._send(status, json.dumps(made).encode(), "application/json")

        do_GET = do_POST = _answer

        def _action(self, path: list[str]) -> None:
            found: typing.Any = gateway.actions[path[3]]
            if path[4:] == ["claim"]:
                found = {"action": found, "claim_token": f"token of {path[3]}"}
            return self._send(200, json.dumps(found).encode(), "application/json")

        def _fault(self, fault: tuple[int, dict[str, str]] | None) -> None:
            if fault is None:
                self.close_connection = True
                return
            status, headers = fault
            error = {"code": "some_code", "message": "some words", "retryable": False, "details": {}}
            self._send(status, json.dumps({"error": error}).encode(), "application/json", headers)

        def _send(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"content-type": kind, "content-length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def _stream(self, after: int) -> None:
            if gateway.gone:
                return self._send(410, b"", "")
            if gateway.stream_faults:
                return self._fault((gateway.stream_faults.pop(0), {}))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            self._piece(b": run\n\n")
            for event in gateway.events:
                if event["sequence"] <= after:
                    continue
                frame = f"id: {event['sequence']}\nevent: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
                # Any byte may be the last of a piece.
                self._piece(frame[:31])
                self._piece(frame[31:])
                if event["sequence"] in gateway.cuts:
                    gateway.cuts.remove(event["sequence"])
                    self.close_connection = True
                    return None
            gateway.open.wait(30)
            self._piece(b"")
            return None

        def _piece(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

        def log_message(self, format: str, *_arguments: object) -> None:
            pass

    return Handler
