"""A chat page: the server has the API key, the browser gets a link to the stream of one run (`pip install ./clients/python`)."""
import json, os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from runnel import Client, message

MAX_BYTES = 64 * 1024  # of a question
client = Client()  # of RUNNEL_URL and RUNNEL_API_KEY, which `runnel dev` prints
PAGE = """<!doctype html><meta charset="utf-8"><title>Chat</title><pre id="log"></pre>
<form><input name="text" size="60" autofocus> <button>Send</button></form><script>
const conversation = "page-" + crypto.randomUUID(), form = document.querySelector("form");
form.onsubmit = async (sent) => {
  sent.preventDefault();
  const text = form.text.value, answer = document.createTextNode("…");
  form.reset();
  document.getElementById("log").append("> " + text + "\\n", answer, "\\n\\n");
  const { url, hint } = await (await fetch("/ask", { method: "POST", body: JSON.stringify({ text, conversation }) })).json();
  if (!url) return void (answer.data = hint);
  const events = new EventSource(url), on = (type, read) => events.addEventListener(type, (event) => read(JSON.parse(event.data).data));
  on("message.delta", ({ chunk }) => (answer.data = answer.data.replace(/…$/, "") + chunk.content + "…"));
  on("message.completed", ({ message }) => (answer.data = message.content));
  on("run.failed", (error) => (answer.data = error.message));
  for (const type of ["run.completed", "run.failed"]) on(type, () => events.close());
};</script>"""

class ChatPage(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer("text/html", PAGE)

    def do_POST(self):
        question = json.loads(self.rfile.read(min(int(self.headers["content-length"]), MAX_BYTES)))
        accepted = client.post_event(message(question["text"], question["conversation"]))  # an unguessable id: it opens a history
        run_id = accepted.get("run_id")
        self.answer("application/json", json.dumps(client.stream_link(run_id) if run_id else {"hint": accepted.get("hint")}))

    def answer(self, content_type, text):
        self.send_response(200)
        self.send_header("content-type", content_type)
        self.end_headers()
        self.wfile.write(text.encode())

if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8080"))), ChatPage)
    print(f"listening http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
