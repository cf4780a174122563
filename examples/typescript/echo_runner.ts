// The echo runner as a web function: only Node at run time, 18 or newer.
import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { buffer } from "node:stream/consumers";
import { finished, pipeline } from "node:stream/promises";

const SECRET = /^whsec_([A-Za-z0-9+/]+={0,2})$/.exec(process.env.RUNNER_SECRET ?? "")?.[1];
if (!SECRET) throw new Error("RUNNER_SECRET is not whsec_ and a key in base64");
const KEY = Buffer.from(SECRET, "base64");
const RUNNER = { id: "plugin:runnel/echo-typescript/default", name: "default",
  label: { en_US: "Echo (TypeScript)", zh_Hans: "回声（TypeScript）" }, permissions: { history: ["page"], state: ["conversation"] },
  capabilities: { streaming: true, interrupt: true } };
const MAX_BYTES = 8 * 1024 * 1024; // of a request: an event of 1 MiB arrives with its text twice, with state, tool schemas, …
const live = new Map<string, AbortController>(); // run id -> the controller that cancels the run, during its execution

// The part of a request that this runner reads, and a result: its type and its data.
type Host = { base_url: string; token: string };
type Context = { run_id: string; input: { text?: string | null }; context: { available_apis: { state: boolean } };
  conversation?: { conversation_id?: string | null } | null; state: { conversation: Record<string, number> } };
type Result = [type: string, data: object];

// By the gateway, in the last five minutes, as Standard Webhooks requires.
function isSigned(headers: IncomingMessage["headers"], body: Buffer): boolean {
  const { "webhook-id": id = "", "webhook-timestamp": when = "", "webhook-signature": given = "" } = headers;
  if (!/^[0-9]{1,12}$/.test(`${when}`) || Math.abs(Date.now() / 1000 - Number(when)) > 300) return false;
  const tag = createHmac("sha256", KEY).update(`${id}.${when}.`).update(body).digest("base64");
  const expected = Buffer.from(`v1,${tag}`);
  const isExpected = (one: Buffer) => one.length === expected.length && timingSafeEqual(one, expected);
  return `${given}`.split(" ").map((one) => Buffer.from(one)).some(isExpected);
}

// Refuses a redirect: only the gateway may receive the token.
async function callHost(host: Host, path: string): Promise<any> {
  const headers = { authorization: `Bearer ${host.token}` };
  const answer = await fetch(host.base_url + path, { headers, redirect: "error", signal: AbortSignal.timeout(30_000) });
  const body: any = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(body.error.message), { answered: body.error });
  return body;
}

// Yields the results of a run.
async function* echo(context: Context, host: Host, cancel: AbortSignal): AsyncGenerator<Result> {
  try {
    const isCancelRequested = (await callHost(host, "/run")).cancel_requested_at != null;
    const found = context.input.text?.match(/\p{White_Space}*\P{White_Space}+\p{White_Space}*/gu);
    const words = found ?? ["(nothing ", "to ", "echo)"];
    for (const word of words) {
      if (isCancelRequested || cancel.aborted) {
        yield ["run.failed", { code: "cancelled", message: "the run was cancelled" }];
        return;
      }
      yield ["message.delta", { chunk: { role: "assistant", content: word } }];
    }
    if (context.context.available_apis.state && context.conversation?.conversation_id) {
      const count = (context.state.conversation["echo.count"] ?? 0) + 1;
      yield ["state.updated", { scope: "conversation", key: "echo.count", value: count }];
    }
    const message = { role: "assistant", content: words.join("") };
    yield ["message.completed", { message, file_ids: [] }];
    yield ["run.completed", { finish_reason: "stop" }];
  } catch (error: any) {
    yield ["run.failed", error.answered ?? { code: "runner.exception", message: `${error.message}` }];
  }
}

async function* frames(context: Context, host: Host, cancel: AbortController): AsyncGenerator<string> {
  live.set(context.run_id, cancel);
  try {
    yield ": hi\n\n";
    let sequence = 0;
    for await (const [type, data] of echo(context, host, cancel.signal)) {
      const result = { run_id: context.run_id, type, data, sequence: ++sequence };
      yield `event: ${type}\nid: ${sequence}\ndata: ${JSON.stringify(result)}\n\n`;
    }
  } finally {
    if (live.get(context.run_id) === cancel) live.delete(context.run_id);
  }
}

async function serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
  const answer = (status: number, body: object) =>
    response.writeHead(status, { "content-type": "application/json", connection: "close" }).end(JSON.stringify(body));
  const { "content-length": length = 0, "transfer-encoding": endless } = request.headers;
  if (endless || Number(length) > MAX_BYTES) { // read and discarded: a client that still sends sees no response
    await finished(request.resume());
    return void answer(413, { error: { code: "payload_too_large", message: `more than ${MAX_BYTES} bytes` } });
  }
  const body = await buffer(request);
  const call = `${request.method} ${request.url}`, cancel = live.get(call.split("/").at(-2) ?? "");
  if (!isSigned(request.headers, body)) {
    answer(401, { error: { code: "unauthenticated", message: "not signed" } });
  } else if (call === "GET /runners") {
    answer(200, { runners: [RUNNER] });
  } else if (call === "POST /runs" && JSON.parse(body.toString()).runner_id === RUNNER.id) {
    const { context, host } = JSON.parse(body.toString());
    response.writeHead(200, { "content-type": "text/event-stream", connection: "close" });
    const ended = new AbortController();
    response.once("close", () => ended.abort()); // also if the gateway disconnects while the runner waits
    await pipeline(frames(context, host, ended), response); // at the gateway's pace, until it disconnects
  } else if (call.endsWith("/cancel") && cancel) {
    cancel.abort();
    answer(202, {});
  } else {
    answer(404, { error: { code: "not_found", message: "not here" } });
  }
}

const server = createServer((request, response) => {
  serve(request, response).catch(() => response.destroy()); // the client disconnected, or signed an invalid request
});
server.listen(Number(process.env.PORT ?? 9100), "127.0.0.1", () =>
  console.log(`listening http://127.0.0.1:${(server.address() as AddressInfo).port}`));
