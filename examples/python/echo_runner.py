"""The echo runner as a web function: standard library only, Python 3.9 or newer."""
import base64, collections, hashlib, hmac, itertools, json, os, re, threading, time, urllib.error, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = base64.b64decode(os.environ["RUNNER_SECRET"].split("whsec_", 1)[1], validate=True)
RUNNER = {"id": "plugin:runnel/echo-python/default", "name": "default",
          "label": {"en_US": "Echo (Python)", "zh_Hans": "回声（Python）"},
          "permissions": {"history": ["page"], "state": ["conversation"]},
          "capabilities": {"streaming": True, "interrupt": True, "resumable": True}}
MAX_BYTES = 8 * 1024 * 1024  # of a request: an event of 1 MiB arrives with its text twice, with state, tool schemas, …
MAX_RESULTS, RESUME_SECONDS = 10_000, 120  # of a run, for a gateway that resumes it after another one was lost
runs = {}  # run id -> the run, until RESUME_SECONDS after its last connection

def is_signed(headers, body):  # by the gateway, in the last five minutes, as Standard Webhooks requires
    message_id, when = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not re.fullmatch("[0-9]{1,12}", when) or abs(time.time() - int(when)) > 300:
        return False
    tag = hmac.new(KEY, f"{message_id}.{when}.".encode() + body, hashlib.sha256).digest()
    expected, given = b"v1," + base64.b64encode(tag), headers.get("webhook-signature", "")
    return any(hmac.compare_digest(expected, one.encode()) for one in given.split(" "))

class HostError(Exception):
    """Code and message of a refused call."""

def call_host(run, path, body=None):  # the token does not follow a redirect
    while True:
        host, data = run.host, None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(host["base_url"] + path, data, {"Content-Type": "application/json"})
        request.add_unredirected_header("Authorization", "Bearer " + host["token"])
        try:
            return urllib.request.urlopen(request, timeout=300)
        except urllib.error.HTTPError as answer:
            error = error_of(answer)
            if error["code"] != "run_moved":
                raise HostError(error)
        except urllib.error.URLError as unsent:
            error = {"code": "callback.unreachable", "message": str(unsent)}
            if not isinstance(unsent.reason, ConnectionRefusedError):
                raise HostError(error)
        with run.changed:  # the call had no effect: it is repeated after the resume
            if not run.changed.wait_for(lambda: run.host is not host, RESUME_SECONDS):
                raise HostError(error)

def error_of(answer):  # of a refused call; a proxy in between may answer with any text
    try:
        return dict(json.load(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return {"code": "runner.exception", "message": str(answer)}

def echo(run):  # the runner: yields the type and the data of each result
    try:
        context = run.context
        is_cancel_requested = json.load(call_host(run, "/run"))["cancel_requested_at"] is not None
        words = re.findall(r"\s*\S+\s*", context["input"].get("text") or "")
        words = words or ["(nothing ", "to ", "echo)"]
        for word in words:
            if is_cancel_requested or run.cancel.is_set():
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
    except HostError as refused:
        yield "run.failed", refused.args[0]
    except Exception as error:
        yield "run.failed", {"code": "runner.exception", "message": str(error)}

class Run:  # of an event: it works on while no gateway is attached
    def __init__(self, context, host):
        self.context, self.host, self.attempt, self.is_attached, self.has_ended = context, host, 0, False, False
        self.frames, self.dropped, self.sent = collections.deque(), 0, 0  # frames, and sequences of their ends
        self.changed, self.cancel = threading.Condition(), threading.Event()

    def work(self, execute):  # in a thread of its own
        for number, (kind, data) in enumerate(execute(self), 1):
            result = {"run_id": self.context["run_id"], "type": kind, "data": data, "sequence": number}
            with self.changed:
                self.changed.wait_for(lambda: not self.is_attached or number - self.sent < 64)  # at the gateway's pace
                self.frames.append(f"event: {kind}\nid: {number}\ndata: {json.dumps(result)}\n\n".encode())
                while len(self.frames) > MAX_RESULTS and self.dropped < self.sent:
                    self.drop()
                if len(self.frames) > MAX_RESULTS:  # without a gateway
                    self.cancel.set()
                self.changed.notify_all()
        with self.changed:
            self.has_ended = True
            self.changed.notify_all()

    def drop(self):
        self.frames.popleft()
        self.dropped += 1

    def attach(self, attempt, after, host):  # the status of a resume; a higher attempt ends the one before it
        with self.changed:
            if attempt <= self.attempt:
                return 409
            if not self.dropped <= after <= self.dropped + len(self.frames):
                return 404
            while self.dropped < after:
                self.drop()
            self.attempt, self.is_attached, self.sent, self.host = attempt, True, after, host
            self.changed.notify_all()
            return 200

    def send(self, write, attempt):  # the unsent results, then live, to the connection of an attempt
        try:
            while self.attempt == attempt:
                with self.changed:  # a minute of silence times out the run
                    has_unsent = lambda: self.sent < self.dropped + len(self.frames)
                    self.changed.wait_for(lambda: self.attempt != attempt or has_unsent() or self.has_ended, 15)
                    frames = list(itertools.islice(self.frames, self.sent - self.dropped, None))
                    has_ended = self.has_ended
                write(b"".join(frames) or b": alive\n\n")
                with self.changed:
                    self.sent += len(frames) if self.attempt == attempt else 0
                    self.changed.notify_all()
                if has_ended:
                    return
        finally:
            with self.changed:
                self.is_attached = self.is_attached and self.attempt != attempt
                self.changed.notify_all()
            forgetting = threading.Timer(RESUME_SECONDS, self.forget, [attempt])
            forgetting.daemon = True
            forgetting.start()

    def forget(self, attempt):
        if self.attempt == attempt:
            self.cancel.set()
            runs.pop(self.context["run_id"], None)

class RunnerApi(BaseHTTPRequestHandler):  # HTTP/1.0, unbuffered; a response ends with its connection
    manifest, execute = RUNNER, staticmethod(echo)

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        if length > MAX_BYTES:  # read and discarded: a client that still sends sees no response
            while length > 0 and self.rfile.read(min(length, 65536)):
                length -= 65536
            return self.answer(413, {"error": {"code": "payload_too_large", "message": f"more than {MAX_BYTES} bytes"}})
        body = self.rfile.read(length) if length > 0 else b""
        call, run = f"{self.command} {self.path}", runs.get(self.path.split("/")[-2])
        if not is_signed(self.headers, body):
            self.answer(401, {"error": {"code": "unauthenticated", "message": "not signed"}})
        elif call == "GET /runners":
            self.answer(200, {"runners": [self.manifest]})
        elif call == "POST /runs" and json.loads(body)["runner_id"] == self.manifest["id"]:
            self.start(**json.loads(body))
        elif call.endswith("/resume") and run:
            self.stream(run, **json.loads(body))
        elif call.endswith("/cancel") and run and not run.has_ended:
            run.cancel.set()
            self.answer(202, {})
        else:
            self.answer(404, {"error": {"code": "not_found", "message": "not here"}})
    do_GET = do_POST

    def answer(self, status, body, content_type="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.end_headers()
        self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

    def start(self, context, host, **_):
        runs[context["run_id"]] = run = Run(context, host)
        self.stream(run, int(self.headers.get("Runnel-Attempt", 1)), host, begin=True)

    def stream(self, run, attempt, host, after=None, begin=False, **_):
        status = run.attach(attempt, after or 0, host)
        if begin:
            threading.Thread(target=run.work, args=(self.execute,), daemon=True).start()
        if status != 200:
            return self.answer(status, {"error": {"code": "conflict", "message": "this attempt cannot resume the run"}})
        self.answer(200, b": hi\n\n", "text/event-stream")
        run.send(self.wfile.write, attempt)

def serve(api):  # another runner overrides `manifest` and `execute` of the same class
    address = (os.environ.get("HOST", "127.0.0.1"), int(os.environ.get("PORT", 9100)))
    server = ThreadingHTTPServer(address, api)
    print(f"listening http://{address[0]}:{server.server_port}", flush=True)
    server.serve_forever()

if __name__ == "__main__":
    serve(RunnerApi)
