"""Comments on a GitHub issue when the agent's run about it ends (`pip install "standardwebhooks>=1.1"`).

A webhook of the gateway with `payload = "full"` posts here. Its runs have conversations such as `acme/shop#7`.
"""
import json, os, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from standardwebhooks import Webhook

MAX_BYTES = 8 * 1024 * 1024
GITHUB = os.environ.get("GITHUB_API_URL", "https://api.github.com")
webhook = Webhook(os.environ["WEBHOOK_SECRET"])
commented = set()  # a message may arrive twice

def text_of(run):
    if run["status"] == "completed":
        return (run.get("output") or {}).get("content") or "The agent ended without an answer."
    return f"The agent's run {run['run_id']} ended as {run['status']}."

def comment(run):
    repository, issue = run["conversation_id"].rsplit("#", 1)
    request = urllib.request.Request(
        f"{GITHUB}/repos/{repository}/issues/{issue}/comments",
        json.dumps({"body": text_of(run)}).encode(),
        {"authorization": f"Bearer {os.environ['GITHUB_TOKEN']}", "content-type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=10).close()

class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        length = int(self.headers.get("content-length", 0))
        if length > MAX_BYTES:
            return self.answer(413)
        body = self.rfile.read(length)
        try:
            webhook.verify(body, dict(self.headers), json_parse=False)
        except Exception:
            return self.answer(401)
        message = json.loads(body)
        run = message.get("run") or {}
        if "#" in (run.get("conversation_id") or "") and message["id"] not in commented:
            try:
                comment(run)
            except OSError as error:
                print(f"no comment on {run['conversation_id']}: {error}", flush=True)
                return self.answer(502)  # the gateway posts the message again
            commented.add(message["id"])
        self.answer(204)

    def answer(self, status):
        self.send_response(status)
        self.end_headers()

if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8080"))), Receiver)
    print(f"listening http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
