// The echo runner as a web function: only Node at run time, 18 or newer.
import { createHmac, timingSafeEqual } from "node:crypto";
import { EventEmitter, once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { buffer } from "node:stream/consumers";
import { finished, pipeline } from "node:stream/promises";

const SECRET = /^whsec_([A-Za-z0-9+/]+={0,2})$/.exec(process.env.RUNNER_SECRET ?? "")?.[1];
if (!SECRET) throw new Error("RUNNER_SECRET is not whsec_ and a key in base64");
const KEY = Buffer.from(SECRET, "base64");
const RUNNER = { id: "plugin:runnel/echo-typescript/default", name: "default",
  label: { en_US: "Echo (TypeScript)", zh_Hans: "回声（TypeScript）" }, permissions: { history: ["page"], state: ["conversation"] },
  capabilities: { streaming: true, interrupt: true, resumable: true } };
const MAX_BYTES = 8 * 1024 * 1024; // of a request: an event of 1 MiB arrives with its text twice, with state, tool schemas, …
const MAX_RESULTS = 10_000, RESUME_SECONDS = 120; // of a run, for a gateway that resumes it after another one was lost
const runs = new Map<string, Run>(); // run id -> the run, until RESUME_SECONDS after its last connection

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

// Refuses a redirect: only the gateway may receive the token. A call without effect is repeated after the resume.
async function callHost(run: Run, path: string): Promise<any> {
  while (true) {
    const { host } = run, headers = { authorization: `Bearer ${host.token}` };
    const signal = AbortSignal.timeout(30_000);
    const answer = await fetch(host.base_url + path, { headers, redirect: "error", signal }).catch((error) => {
      if (error.cause?.code !== "ECONNREFUSED") throw error;
    });
    const body: any = await answer?.json();
    if (answer?.ok) return body;
    const error = body?.error ?? { code: "callback.unreachable", message: "no gateway at this address" };
    if (answer && error.code !== "run_moved") throw Object.assign(new Error(error.message), { answered: error });
    while (run.host === host) await run.change(AbortSignal.timeout(RESUME_SECONDS * 1000));
  }
}

// Yields the results of a run.
async function* echo(run: Run): AsyncGenerator<Result> {
  const { context, cancel: { signal: cancel } } = run;
  try {
    const isCancelRequested = (await callHost(run, "/run")).cancel_requested_at != null;
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

// A run works on while no gateway is attached.
class Run {
  attempt = 0;
  hasEnded = false;
  readonly cancel = new AbortController();
  readonly #frames: string[] = [];
  #dropped = 0; // results before the first frame
  #sent = 0;
  #isAttached = false;
  readonly #changes = new EventEmitter();

  constructor(readonly context: Context, public host: Host) {}

  async work(): Promise<void> {
    for await (const [type, data] of echo(this)) {
      while (this.#isAttached && this.#last - this.#sent >= 64) await this.change(); // at the gateway's pace
      const result = { run_id: this.context.run_id, type, data, sequence: this.#last + 1 };
      this.#frames.push(`event: ${type}\nid: ${result.sequence}\ndata: ${JSON.stringify(result)}\n\n`);
      while (this.#frames.length > MAX_RESULTS && this.#dropped < this.#sent) this.#drop();
      if (this.#frames.length > MAX_RESULTS) this.cancel.abort(); // without a gateway
      this.#changes.emit("change");
    }
    this.hasEnded = true;
    this.#changes.emit("change");
  }

  async change(signal?: AbortSignal): Promise<void> {
    await once(this.#changes, "change", { signal });
  }

  get #last(): number {
    return this.#dropped + this.#frames.length;
  }

  #drop(): void {
    this.#frames.shift();
    this.#dropped += 1;
  }

  // The status of a resume. A higher attempt ends the one before it.
  attach(attempt: number, after: number, host: Host): number {
    if (attempt <= this.attempt) return 409;
    if (after < this.#dropped || after > this.#last) return 404;
    while (this.#dropped < after) this.#drop();
    Object.assign(this, { attempt, host });
    this.#sent = after;
    this.#isAttached = true;
    this.#changes.emit("change");
    return 200;
  }

  async *results(attempt: number): AsyncGenerator<string> {
    yield ": hi\n\n";
    while (this.attempt === attempt && this.#isAttached) {
      const frame = this.#frames[this.#sent - this.#dropped];
      if (frame) {
        yield frame;
        if (this.attempt === attempt) this.#sent += 1;
        this.#changes.emit("change");
      } else if (this.hasEnded) return;
      else await this.change();
    }
  }

  detach(attempt: number): void {
    if (attempt !== this.attempt) return;
    this.#isAttached = false;
    this.#changes.emit("change");
    setTimeout(() => {
      if (attempt !== this.attempt) return;
      this.cancel.abort();
      runs.delete(this.context.run_id);
    }, RESUME_SECONDS * 1000).unref();
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
  const call = `${request.method} ${request.url}`, run = runs.get(call.split("/").at(-2) ?? "");
  const stream = async (run: Run, attempt: number, after: number, host: Host) => {
    const status = run.attach(attempt, after, host);
    const error = { code: "conflict", message: "this attempt cannot resume the run" };
    if (status !== 200) return answer(status, { error });
    response.writeHead(200, { "content-type": "text/event-stream", connection: "close" });
    response.once("close", () => run.detach(attempt)); // also if the gateway disconnects while the runner waits
    await pipeline(run.results(attempt), response); // at the gateway's pace, until it disconnects
  };
  if (!isSigned(request.headers, body)) {
    answer(401, { error: { code: "unauthenticated", message: "not signed" } });
  } else if (call === "GET /runners") {
    answer(200, { runners: [RUNNER] });
  } else if (call === "POST /runs" && JSON.parse(body.toString()).runner_id === RUNNER.id) {
    const { context, host } = JSON.parse(body.toString()), started = new Run(context, host);
    runs.set(context.run_id, started);
    const streaming = stream(started, Number(request.headers["runnel-attempt"] ?? 1), 0, host);
    void started.work();
    await streaming;
  } else if (call.endsWith("/resume") && run) {
    const { attempt, after, host } = JSON.parse(body.toString());
    await stream(run, attempt, after ?? 0, host);
  } else if (call.endsWith("/cancel") && run && !run.hasEnded) {
    run.cancel.abort();
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
