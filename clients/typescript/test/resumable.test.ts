// Resumable runs without a network: docs/protocol.md, Resumable runners.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { mock, test } from "node:test";
import { ApiError, Webhook } from "../src/index.js";
import { toNodeHandler } from "../src/node.js";
import { Endpoint, type EndpointOptions, type RunContext, type RunFunction, results } from "../src/runner/index.js";
import type { EndpointResponse } from "../src/runner/endpoint.js";
import { Runs } from "../src/runner/runs.js";
import { ResultStream } from "../src/runner/stream.js";

const SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const ID = "plugin:acme/test/default";
const hook = new Webhook(SECRET);
let messages = 0;
// The adapter logs lost runs; these tests lose them.
console.error = console.warn = () => {};

async function request(path: string, body: unknown, headers: Record<string, string> = {}) {
  const data = new TextEncoder().encode(JSON.stringify(body));
  messages += 1;
  return { method: "POST", path, headers: { ...headers, ...(await hook.sign(`m_${messages}`, data)) }, body: data };
}

function access(host = "host", token = "t-1") {
  return { base_url: `http://${host}/host/v1`, token, token_expires_at: Date.now() / 1000 + 900 };
}

function runRequest(context: object = {}, host = access()) {
  const deadline_at = Date.now() / 1000 + 60;
  const event = { event_id: "e-1", event_type: "message.received", source: "api" };
  const resources = { models: [{ model_id: "m", operations: ["stream"] }] };
  const shared = { run_id: "r-1", event, input: { text: "hello" }, resources, runtime: { deadline_at } };
  return { runner_id: ID, runner_name: "default", context: { ...shared, ...context }, host };
}

function endpoint(work: RunFunction, options: EndpointOptions & { resumeWithinSeconds?: number } = {}): Endpoint {
  const { resumeWithinSeconds: within, ...others } = options;
  const resume = within === undefined ? {} : { resumeWithinSeconds: within };
  const runner = { id: ID, capabilities: { resumable: true }, ...resume };
  return new Endpoint({ secret: SECRET, ...others }).runner(runner, work);
}

async function start(made: Endpoint, body: object = runRequest()): Promise<EndpointResponse> {
  const response = await made.handle(await request("/runs", body));
  assert.equal(response.status, 200, response.body);
  return response;
}

async function resumed(made: Endpoint, attempt: number, after?: number, runId = "r-1"): Promise<EndpointResponse> {
  const body = { run_id: runId, runner_id: ID, attempt, after: after ?? null, host: access("next", `t-${attempt}`) };
  return made.handle(await request(`/agent/runs/${runId}/resume`, body));
}

async function resume(made: Endpoint, attempt: number, after?: number): Promise<EndpointResponse> {
  const response = await resumed(made, attempt, after);
  assert.equal(response.status, 200, response.body);
  return response;
}

/** The next results of a connection, or all of them. */
async function read(response: EndpointResponse, number = Number.POSITIVE_INFINITY): Promise<string[]> {
  const found: string[] = [];
  while (found.length < number) {
    const step = await response.frames?.next();
    if (!step || step.done) break;
    const text = new TextDecoder().decode(step.value);
    if (!text.startsWith(":")) found.push(text);
  }
  return found;
}

/** Runs the callbacks that are ready. */
async function settle(): Promise<void> {
  for (let turn = 0; turn < 20; turn++) await new Promise((resolve) => setImmediate(resolve));
}

/** Ends when its signal is aborted. */
const endless: RunFunction = async function* (ctx) {
  yield "a";
  await new Promise((_, reject) => ctx.signal.addEventListener("abort", () => reject(ctx.signal.reason)));
};

const threeWords: RunFunction = async function* () {
  yield* ["one ", "two ", "three"];
};

test("manifest declares the capability", async () => {
  const made = endpoint(threeWords, { resumeWithinSeconds: 30 });
  const [manifest] = JSON.parse((await made.handle(await request("/", { action: "list_runners" }))).body).runners;
  assert.deepEqual([manifest.capabilities.resumable, manifest.resume_within_seconds], [true, 30]);
});

test("resume repeats equal bytes after each cut", async () => {
  const expected = await read(await start(endpoint(threeWords)));
  assert.equal(expected.length, 5);
  for (let cut = 0; cut <= 5; cut++) {
    for (let stored = 0; stored <= cut; stored++) {
      const made = endpoint(threeWords);
      const response = await start(made);
      const found = await read(response, cut);
      response.close?.();
      assert.deepEqual([...found.slice(0, stored), ...(await read(await resume(made, 2, stored)))], expected);
    }
  }
});

test("run works on without its connection", async () => {
  let cut = () => {};
  const isCut = new Promise<void>((resolve) => {
    cut = resolve;
  });
  let isDone = false;
  const made = endpoint(async function* () {
    yield "a";
    await isCut;
    for (let number = 0; number < 100; number++) yield "b";
    isDone = true;
  });
  const response = await start(made);
  await read(response, 1);
  response.close?.();
  cut();
  await settle();
  assert(isDone);
  assert.equal((await read(await resume(made, 2, 1))).length, 102);
});

test("ended run frees its slot and can be resumed", async () => {
  const made = endpoint(threeWords, { maxRuns: 1 });
  const expected = await read(await start(made));
  await read(await start(made, runRequest({ run_id: "r-2" })));
  assert.deepEqual(await read(await resume(made, 2, 4)), expected.slice(4));
});

test("refuses attempts that are not higher", async () => {
  const made = endpoint(threeWords);
  await read(await made.handle(await request("/runs", runRequest(), { "runnel-attempt": "3" })), 1);
  const statuses: number[] = [];
  for (const attempt of [2, 3, 4, 4]) statuses.push((await resumed(made, attempt, 1)).status);
  assert.deepEqual(statuses, [409, 409, 200, 409]);
});

test("answers 404 for runs that it lacks", async () => {
  const made = endpoint(threeWords);
  assert.equal((await resumed(made, 2)).status, 404);
  const plain = new Endpoint({ secret: SECRET }).runner({ id: ID }, threeWords);
  const response = await start(plain);
  assert.equal((await resumed(plain, 2)).status, 404);
  response.close?.();
  const malformed = { action: "resume", run_id: "r-1", runner_id: ID, attempt: "2", host: access() };
  assert.equal((await made.handle(await request("/", malformed))).status, 400);
});

test("single URL resumes by action", async () => {
  const made = endpoint(threeWords);
  (await start(made)).close?.();
  const body = { action: "resume", run_id: "r-1", runner_id: ID, attempt: 2, host: access() };
  assert.equal((await read(await made.handle(await request("/fn", body)))).length, 5);
});

test("higher attempt closes the connection before it", async () => {
  const made = endpoint(threeWords);
  const first = await start(made);
  await read(first, 2);
  const second = await resume(made, 2, 2);
  assert(first.replaced?.aborted);
  assert.deepEqual(await read(first), []);
  // The loss of the old connection does not detach the new one.
  first.close?.();
  assert.equal((await read(second)).length, 3);
});

test("fetch handler closes connections that take no bytes", async () => {
  const made = endpoint(threeWords);
  const { headers, body } = await request("/runs", runRequest());
  const response = await made.fetch(new Request("http://edge/runs", { method: "POST", headers, body }));
  const reader = response.body?.getReader();
  await settle();
  const second = await resume(made, 2);
  await assert.rejects(async () => reader?.read(), /resumed/);
  assert.equal((await read(second)).length, 5);
});

test("node server detaches and resumes", async () => {
  const made = endpoint(threeWords);
  const server = createServer(toNodeHandler(made)).listen(0, "127.0.0.1");
  await once(server, "listening");
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const { headers, body } = await request("/runs", runRequest());
  const cut = new AbortController();
  const response = await fetch(`${url}/runs`, { method: "POST", headers, body, signal: cut.signal });
  await response.body?.getReader().read();
  cut.abort();
  const resume = { run_id: "r-1", runner_id: ID, attempt: 2, after: 1, host: access() };
  const again = await request("/runs/r-1/resume", resume);
  const text = await (await fetch(`${url}/runs/r-1/resume`, again)).text();
  assert.deepEqual(text.match(/^id: .+$/gm), ["id: 2", "id: 3", "id: 4", "id: 5"]);
  server.close();
});

const flood: RunFunction = async function* () {
  for (let number = 0; number < 10_050; number++) yield results.log("x");
};

test("full buffer fails a detached run", async () => {
  const large: RunFunction = async function* () {
    for (let number = 0; number < 200; number++) yield results.message("x".repeat(60_000));
  };
  const bytes = Math.floor((8 * 1024 * 1024) / 60_000) + 2;
  for (const [work, expected] of [[flood, 10_001], [large, bytes]] as const) {
    const made = endpoint(work);
    (await start(made)).close?.();
    await settle();
    const found = await read(await resume(made, 2));
    assert.equal(found.length, expected);
    assert.match(`${found.at(-1)}`, /"code":"runner.buffer_full".*"retryable":true/);
  }
});

test("attached run drops its oldest sent results", async () => {
  const cases: [number, number][] = [[5, 404], [10_000, 200]];
  for (const [after, status] of cases) {
    const made = endpoint(flood);
    const response = await start(made);
    await read(response, 10_040);
    response.close?.();
    const again = await resumed(made, 2, after);
    assert.equal(again.status, status);
    if (status === 200) assert.equal((await read(again)).length, 51);
    else assert.equal((await resumed(made, 3, 10_000)).status, 404, "its gateway has ended the run");
  }
});

test("ended runs are bounded", () => {
  const runs = new Runs();
  const streams = Array.from({ length: 1030 }, () => new ResultStream(15_000, 120));
  for (const [number, stream] of streams.entries()) runs.end(`r-${number}`, stream);
  assert.deepEqual([5, 6].map((number) => runs.streamOf(`r-${number}`) !== undefined), [false, true]);
  streams[1029]?.add(new Uint8Array(33 * 1024 * 1024));
  const last = new ResultStream(15_000, 120);
  runs.end("r-1030", last);
  assert.deepEqual(["r-1029", "r-1030"].map((id) => runs.streamOf(id)), [undefined, last]);
});

/** A detached run with a clock that `tick` moves, in seconds. */
async function detached(body: object, resumeWithinSeconds?: number) {
  let isAborted = false;
  const work: RunFunction = (ctx) => {
    ctx.signal.addEventListener("abort", () => {
      isAborted = true;
    });
    return endless(ctx);
  };
  const made = endpoint(work, resumeWithinSeconds === undefined ? {} : { resumeWithinSeconds });
  const response = await start(made, body);
  await read(response, 1);
  response.close?.();
  const tick = async (seconds: number) => {
    mock.timers.tick(seconds * 1000);
    await settle();
    return isAborted;
  };
  return { made, tick };
}

test("run without resume is cancelled", async () => {
  const cases: [number | undefined, number, number][] = [[undefined, 600, 120], [30, 600, 30], [undefined, 20, 20]];
  for (const [within, deadline, seconds] of cases) {
    mock.timers.enable({ apis: ["setTimeout", "Date"], now: Date.now() });
    const body = runRequest({ runtime: { deadline_at: Date.now() / 1000 + deadline } });
    const { made, tick } = await detached(body, within);
    assert.equal(await tick(seconds - 2), false);
    assert.equal(await tick(4), true);
    assert.equal((await resumed(made, 2, 1)).status, 404);
    mock.timers.reset();
  }
});

test("resume stops the timer", async () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"], now: Date.now() });
  const { made, tick } = await detached(runRequest({ runtime: { deadline_at: Date.now() / 1000 + 9000 } }));
  const response = await resume(made, 2, 1);
  assert.equal(await tick(500), false);
  response.close?.();
  assert.equal(await tick(121), true);
  mock.timers.reset();
});

test("cancel ends a detached run", async () => {
  const made = endpoint(endless);
  const response = await start(made);
  await read(response, 1);
  response.close?.();
  assert.equal((await made.handle(await request("/runs/r-1/cancel", { run_id: "r-1" }))).status, 202);
  await settle();
  const [last] = await read(await resume(made, 2, 1));
  assert.match(`${last}`, /"code":"cancelled"/);
});

// --- host API ---

/** Hosts `host` and `next`, of which the first is lost, with the calls that reached them. */
function gateways(...failures: (Error | (() => Response))[]) {
  const calls: [string, string | null, string | null][] = [];
  let fail = () => {};
  const failed = new Promise<void>((resolve) => {
    fail = resolve;
  });
  const send: typeof fetch = async (input, init) => {
    const { hostname, pathname } = new URL(`${input}`);
    const headers = new Headers(init?.headers);
    calls.push([hostname, headers.get("authorization"), headers.get("idempotency-key")]);
    if (hostname === "next") {
      const chunk = { chunk: { role: "assistant", content: "hi" } };
      return pathname.endsWith("/stream")
        ? new Response(`data: ${JSON.stringify(chunk)}\n\n`)
        : Response.json({ result: "done" });
    }
    fail();
    const failure = (failures.length > 1 ? failures.shift() : failures[0]) ?? moved;
    if (failure instanceof Error) throw failure;
    return failure();
  };
  return { calls, failed, send };
}

const moved = () =>
  Response.json({ error: { code: "run_moved", message: "wait for the resume", retryable: false } }, { status: 401 });

function networkFault(code: string): Error {
  return new TypeError("fetch failed", { cause: Object.assign(new Error(code), { code }) });
}

type Call = (ctx: RunContext) => Promise<unknown>;

/** Result of a host call that fails at the first gateway. The second one resumes the run. */
async function outcomeAfterResume(call: Call, ...failures: (Error | (() => Response))[]) {
  const { calls, failed, send } = gateways(...failures);
  let found: unknown;
  const made = endpoint(
    async (ctx) => {
      found = await call(ctx).catch((error: unknown) => (error instanceof ApiError ? error.code : error));
    },
    { fetch: send },
  );
  (await start(made)).close?.();
  await failed;
  await read(await resume(made, 2));
  return { calls, found };
}

const write: Call = (ctx) => ctx.host.json("POST", ["anything"]);
const readRun: Call = (ctx) => ctx.host.json("GET", ["run"]);
const ask: Call = async (ctx) => {
  let text = "";
  for await (const piece of ctx.models.stream("hi")) text += piece;
  return text;
};

test("calls without effect wait for the resume", async () => {
  for (const failure of [moved, networkFault("ECONNREFUSED"), networkFault("UND_ERR_CONNECT_TIMEOUT")]) {
    for (const [call, expected] of [[write, { result: "done" }], [readRun, { result: "done" }], [ask, "hi"]] as const) {
      const { calls, found } = await outcomeAfterResume(call, failure);
      assert.deepEqual(found, expected);
      assert.deepEqual(calls.map(([host, token]) => [host, token]), [["host", "Bearer t-1"], ["next", "Bearer t-2"]]);
    }
  }
});

test("broken calls are repeated if harmless", async () => {
  const keyed: Call = (ctx) => ctx.host.json("POST", ["x"], { headers: { "Idempotency-Key": "k" } });
  const tool: Call = (ctx) => ctx.tools.call("clock", {});
  const put: Call = (ctx) => ctx.host.json("PUT", ["checkpoint"], { json: { value: 1 } });
  const conditional: Call = (ctx) => ctx.host.json("PUT", ["x"], { headers: { "If-Match": "1" } });
  const cases: [Call, unknown][] = [
    [write, "callback.unreachable"],
    [readRun, { result: "done" }],
    [keyed, { result: "done" }],
    [put, { result: "done" }],
    [conditional, "callback.unreachable"],
    [tool, "done"],
    [ask, "callback.unreachable"],
  ];
  for (const [call, expected] of cases) {
    const { calls, found } = await outcomeAfterResume(call, networkFault("UND_ERR_SOCKET"));
    assert.deepEqual(found, expected);
    assert.equal(new Set(calls.map(([, , key]) => key)).size, 1, "both attempts have the same key");
  }
});

test("agent loop calls a lost model again", async () => {
  const loop: Call = async (ctx) => {
    let text = "";
    for await (const piece of ctx.agentLoop("hi")) text += piece;
    return text;
  };
  const { calls, found } = await outcomeAfterResume(loop, networkFault("UND_ERR_SOCKET"), networkFault("ECONNREFUSED"));
  assert.equal(found, "hi");
  assert.deepEqual(calls.map(([host]) => host), ["host", "host", "next"]);
});

test("waiting calls are bounded", async () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"], now: Date.now() });
  const { failed, send } = gateways(moved);
  const made = endpoint(async (ctx) => `${await readRun(ctx)}`, { fetch: send });
  const response = await start(made, runRequest({ runtime: { deadline_at: Date.now() / 1000 + 600 } }));
  let last: string | undefined;
  read(response).then((found) => {
    last = found.at(-1);
  });
  await failed;
  await settle();
  mock.timers.tick(119_000);
  await settle();
  assert.equal(last, undefined);
  mock.timers.tick(2_000);
  await settle();
  assert.match(`${last}`, /"code":"run_moved"/);
  mock.timers.reset();
});

test("unreachable gateway is called again", async () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"], now: Date.now() });
  const { calls, failed, send } = gateways(networkFault("ECONNREFUSED"));
  await start(endpoint(async (ctx) => `${await readRun(ctx)}`, { fetch: send }));
  await failed;
  await settle();
  assert.equal(calls.length, 1);
  mock.timers.tick(1_001);
  await settle();
  assert.equal(calls.length, 2);
  mock.timers.reset();
});

test("other runners get errors at once", async () => {
  const plain = new Endpoint({ secret: SECRET, fetch: gateways(moved).send });
  plain.runner({ id: ID }, async (ctx) => `${await readRun(ctx)}`);
  assert.match(`${(await read(await start(plain))).at(-1)}`, /"code":"run_moved"/);
});

test("token of the resume replaces a renewed one", async () => {
  let begin = () => {};
  let release = () => {};
  const renewing = new Promise<void>((resolve) => {
    begin = resolve;
  });
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  const send: typeof fetch = async () => {
    begin();
    await released;
    return Response.json({ token: "t-late", token_expires_at: Date.now() / 1000 + 900 });
  };
  let token = "";
  const work: RunFunction = async (ctx) => {
    await released;
    await settle();
    token = ctx.host.token;
  };
  const made = endpoint(work, { fetch: send });
  (await start(made, runRequest({}, { ...access(), token_expires_at: Date.now() / 1000 + 30 }))).close?.();
  await renewing;
  const response = await resume(made, 2);
  release();
  await read(response);
  assert.equal(token, "t-2");
});
