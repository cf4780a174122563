"""The echo runner as a web function: standard library only, Python 3.9 or newer."""
import base64, hashlib, hmac, json, os, re, threading, time, urllib.error, urllib.request, weakref
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = base64.b64decode(os.environ["RUNNER_SECRET"].split("whsec_", 1)[1], validate=True)
RUNNER = {"id": "plugin:runnel/echo-python/default", "name": "default",
          "label": {"en_US": "Echo (Python)", "zh_Hans": "回声（Python）"},
          "permissions": {"history": ["page"], "state": ["conversation"]},
          "capabilities": {"streaming": True, "interrupt": True}}
MAX_BYTES = 8 * 1024 * 1024  # of a request: an event of 1 MiB arrives with its text twice, with state, tool schemas, …
live = weakref.WeakValueDictionary()  # run id -> the event that cancels the run, during its execution

def is_signed(headers, body):  # by the gateway, in the last five minutes, as Standard Webhooks requires
    message_id, when = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not re.fullmatch("[0-9]{1,12}", when) or abs(time.time() - int(when)) > 300:
        return False
    tag = hmac.new(KEY, f"{message_id}.{when}.".encode() + body, hashlib.sha256).digest()
    expected, given = b"v1," + base64.b64encode(tag), headers.get("webhook-signature", "")
    return any(hmac.compare_digest(expected, one.encode()) for one in given.split(" "))

def call_host(host, path, body=None):  # the token does not follow a redirect
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(host["base_url"] + path, data, {"Content-Type": "application/json"})
    request.add_unredirected_header("Authorization", "Bearer " + host["token"])
    return urllib.request.urlopen(request, timeout=300)

def error_of(answer):  # of a refused call; a proxy in between may answer with any text
    try:
        return dict(json.load(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return {"code": "runner.exception", "message": str(answer)}

def echo(context, host, cancel):  # the runner: yields the type and the data of each result
    try:
        is_cancel_requested = json.load(call_host(host, "/run"))["cancel_requested_at"] is not None
        words = re.findall(r"\s*\S+\s*", context["input"].get("text") or "")
        words = words or ["(nothing ", "to ", "echo)"]
        for word in words:
            if is_cancel_requested or cancel.is_set():
                yield "run.failed", {"code": "cancelled", "message": "the run was cancelled"}
                return
            yield "message.delta", {"chunk": {"role": "assistant", "content": word}}
        may_count = context["context"]["available_apis"]["state"]
        if may_count and (context.get("conversation") or {}).get("conversation_id"):
            count = context["state"]["conversation"].get("echo.count", 0) + 1
            yield "state.updated", {"scope": "conversation", "key": "echo.count", "value": count}
        message = {"role": "assistant", "content": "".join(words)}
        yield "message.completed", {"message": message, "file_ids": []}
        yield "run.completed", {"finish_reason": "stop"}
    except urllib.error.HTTPError as answer:
        yield "run.failed", error_of(answer)
    except Exception as error:
        yield "run.failed", {"code": "runner.exception", "message": str(error)}

class RunnerApi(BaseHTTPRequestHandler):  # HTTP/1.0, unbuffered; a response ends with its connection
    manifest, execute = RUNNER, staticmethod(echo)

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        if length > MAX_BYTES:  # read and discarded: a client that still sends sees no response
            while length > 0 and self.rfile.read(min(length, 65536)):
                length -= 65536
            return self.answer(413, {"error": {"code": "payload_too_large", "message": f"more than {MAX_BYTES} bytes"}})
        body = self.rfile.read(length) if length > 0 else b""
        call, cancel = f"{self.command} {self.path}", live.get(self.path.split("/")[-2])
        if not is_signed(self.headers, body):
            self.answer(401, {"error": {"code": "unauthenticated", "message": "not signed"}})
        elif call == "GET /runners":
            self.answer(200, {"runners": [self.manifest]})
        elif call == "POST /runs" and json.loads(body)["runner_id"] == self.manifest["id"]:
            self.run(**json.loads(body))
        elif call.endswith("/cancel") and cancel:
            cancel.set()
            self.answer(202, {})
        else:
            self.answer(404, {"error": {"code": "not_found", "message": "not here"}})
    do_GET = do_POST

    def answer(self, status, body, content_type="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.end_headers()
        self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

    def run(self, context, host, **_):
        live[context["run_id"]] = cancel = threading.Event()
        self.answer(200, b": hi\n\n", "text/event-stream")
        writing, ended = threading.Lock(), threading.Event()
        threading.Thread(target=self.keep_alive, args=(writing, ended, cancel), daemon=True).start()
        try:
            for number, (kind, data) in enumerate(self.execute(context, host, cancel), 1):
                result = {"run_id": context["run_id"], "type": kind, "data": data, "sequence": number}
                with writing:
                    self.wfile.write(f"event: {kind}\nid: {number}\ndata: {json.dumps(result)}\n\n".encode())
        finally:
            ended.set()

    def keep_alive(self, writing, ended, cancel):  # a minute of silence times out the run
        while not ended.wait(15):
            try:
                with writing:
                    self.wfile.write(b": alive\n\n")
            except (OSError, ValueError):  # the gateway has closed the connection
                return cancel.set()

def serve(api):  # another runner overrides `manifest` and `execute` of the same class
    address = (os.environ.get("HOST", "127.0.0.1"), int(os.environ.get("PORT", 9100)))
    server = ThreadingHTTPServer(address, api)
    print(f"listening http://{address[0]}:{server.server_port}", flush=True)
    server.serve_forever()

if __name__ == "__main__":
    serve(RunnerApi)
