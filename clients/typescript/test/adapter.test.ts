// The runner adapter without a network. gateway.test.ts serves it to the real gateway.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ApiError, type Message, Webhook } from "../src/index.js";
import { Endpoint, type EndpointOptions, type Permissions, type Result, results, RunFailed, type RunFunction } from "../src/runner/index.js";
import { type EndpointResponse, Rejection } from "../src/runner/endpoint.js";
import { piecesOf, UnverifiedBytes } from "../src/runner/unverified.js";

const SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const ID = "plugin:acme/test/default";
const hook = new Webhook(SECRET);
let messages = 0;
// The adapter logs failures of runners; these tests cause them.
console.error = console.warn = () => {};

async function request(method: string, path: string, body?: unknown) {
  const data = new TextEncoder().encode(body === undefined ? "" : JSON.stringify(body));
  messages += 1;
  return { method, path, headers: await hook.sign(`m_${messages}`, data), body: data };
}

function runRequest(runId = "r-1", context: object = {}) {
  const now = Date.now() / 1000;
  return {
    runner_id: ID,
    runner_name: "default",
    context: {
      run_id: runId,
      event: { event_id: "e-1", event_type: "message.received", source: "api" },
      input: { text: "hello" },
      resources: { models: [{ model_id: "m", operations: ["stream"] }] },
      runtime: { deadline_at: now + 60 },
      ...context,
    },
    host: { base_url: "http://host/host/v1", token: "t-1", token_expires_at: now + 900 },
  };
}

function endpoint(work: RunFunction, options: EndpointOptions = {}): Endpoint {
  return new Endpoint({ secret: SECRET, ...options }).runner({ id: ID }, work);
}

async function started(made: Endpoint, body = runRequest()): Promise<EndpointResponse> {
  const response = await made.handle(await request("POST", "/runs", body));
  assert.equal(response.status, 200, response.body);
  return response;
}

type Found = { type: string; data: any; usage?: unknown; sequence: number; run_id: string };

async function resultsOf(response: EndpointResponse): Promise<Found[]> {
  let text = "";
  for await (const frame of response.frames ?? []) text += new TextDecoder().decode(frame);
  const lines = text.split("\n").filter((line) => line.startsWith("data: "));
  const found = lines.map((line) => JSON.parse(line.slice(6)) as Found);
  assert.deepEqual(found.map((one) => one.sequence), found.map((_, index) => index + 1));
  assert(found.every((one) => one.run_id === "r-1"));
  return found;
}

async function outcome(work: RunFunction, options: EndpointOptions = {}): Promise<[string, any][]> {
  return (await resultsOf(await started(endpoint(work, options)))).map((one) => [one.type, one.data]);
}

async function nextText(response: EndpointResponse): Promise<string> {
  const step = await response.frames?.next();
  return new TextDecoder().decode(step?.value ?? new Uint8Array());
}

const never = () => new Promise<never>(() => {});

test("text becomes deltas and one message", async () => {
  const found = await outcome(async function* (ctx) {
    yield ctx.text;
    yield "";
    yield " you";
  });
  assert.deepEqual(found, [
    ["message.delta", { chunk: { role: "assistant", content: "hello" } }],
    ["message.delta", { chunk: { role: "assistant", content: " you" } }],
    ["message.completed", { message: { role: "assistant", content: "hello you" }, file_ids: [] }],
    ["run.completed", { finish_reason: "stop" }],
  ]);
});

test("returned text is a message", async () => {
  const found = await outcome(async (ctx) => ctx.text);
  assert.deepEqual(found.map(([type]) => type), ["message.completed", "run.completed"]);
});

test("own message and end replace those of the adapter", async () => {
  const found = await outcome(async function* () {
    yield "a";
    yield results.message("A");
    yield results.completed("stop", "need_input");
    yield "never sent";
  });
  assert.deepEqual(found.map(([type]) => type), ["message.delta", "message.completed", "run.completed"]);
  assert.deepEqual(found.at(-1)?.[1], { finish_reason: "stop", outcome: "need_input" });
});

test("exceptions fail the run", async () => {
  const cases: [Error, string, string][] = [
    [new RunFailed("acme.full", "no capacity"), "acme.full", "no capacity"],
    [new ApiError(403, "unauthorized", "not granted"), "unauthorized", "not granted"],
    [new RangeError("password 123"), "runner.exception", "RangeError"],
  ];
  for (const [thrown, code, text] of cases) {
    const found = await outcome(async function* () {
      yield "a";
      throw thrown;
    });
    assert.deepEqual(found.map(([type]) => type), ["message.delta", "run.failed"]);
    assert.equal(found[1]?.[1].code, code);
    assert(found[1]?.[1].message.includes(text));
    assert(!JSON.stringify(found).includes("123"));
  }
});

test("invalid result fails the run", async () => {
  for (const item of [7, null, { type: "x" }, results.state("k", 1n)]) {
    const found = await outcome(async function* () {
      yield item as unknown as string;
    });
    assert.deepEqual([found[0]?.[0], found[0]?.[1].code], ["run.failed", "runner.exception"]);
  }
});

test("delta without chunk names the valid result", async (t) => {
  const logged = t.mock.method(console, "error", () => {});
  for (const data of [{}, { chunk: "text" }]) {
    const found = await outcome(async function* () {
      yield { type: "message.delta", data } as unknown as Result;
    });
    assert.deepEqual(found.map(([type, { code }]) => [type, code]), [["run.failed", "runner.exception"]]);
    assert.match(`${logged.mock.calls.at(-1)?.arguments.at(-1)}`, /results\.delta/);
  }
});

test("missing model names the policy to change", async () => {
  const made = endpoint(async function* (ctx) {
    yield* ctx.models.stream("hi");
  });
  const [failed] = await resultsOf(await started(made, runRequest("r-1", { resources: {} })));
  assert.equal(failed?.data.code, "runner.no_model");
  assert(failed?.data.message.includes("resource_policy.models"));
});

test("calls without grant name the missing permission", async (t) => {
  const cases: [Permissions, string[]][] = [
    [{}, ["history page", "knowledge_bases retrieve", "tools call", "state conversation"]],
    [{ history: ["search"], tools: ["call"], storage: ["plugin"] }, ["history page", "knowledge_bases retrieve"]],
    [{ history: ["page"], tools: ["call"], knowledge_bases: ["retrieve"], state: ["conversation"] }, []],
  ];
  for (const [permissions, lacking] of cases) {
    const warned = t.mock.method(console, "warn", () => {});
    const made = new Endpoint({ secret: SECRET }).runner({ id: ID, permissions }, async function* (ctx) {
      for (let call = 0; call < 2; call++) {
        await ctx.history.messages();
        await ctx.knowledge.search("Runnel");
        ctx.tools.offered();
        await ctx.state.get("count", 0);
      }
      yield "done";
    });
    const logged = (await resultsOf(await started(made))).filter((one) => one.type === "processor.log");
    assert.deepEqual(logged.map((one) => one.data.level), lacking.map(() => "warning"));
    const warnings = warned.mock.calls.map((call) => call.arguments[0]);
    assert.deepEqual(warnings, logged.map((one) => `run r-1: ${one.data.text}`));
    for (const [at, name] of lacking.entries()) {
      assert(logged[at]?.data.text.includes(`the manifest lacks permissions.${name})`));
    }
    warned.mock.restore();
  }
});

test("failed runs name the missing permission first", async () => {
  const found = await outcome(async function* (ctx) {
    await ctx.history.messages();
    throw new RunFailed("acme.empty", "nothing to remember");
  });
  assert.deepEqual(found.map(([type]) => type), ["processor.log", "run.failed"]);
});

test("silent runs send keep-alives", async () => {
  let release = (_: string) => {};
  const late = new Promise<string>((resolve) => {
    release = resolve;
  });
  const response = await started(endpoint(() => late, { keepAliveSeconds: 0.01 }));
  assert.deepEqual([await nextText(response), await nextText(response)], [": run\n\n", ": alive\n\n"]);
  release("late");
  assert.equal((await resultsOf(response)).at(-1)?.type, "run.completed");
});

test("cancel aborts the signal and ends the run", async () => {
  let isCleanedUp = false;
  const made = endpoint(async function* (ctx) {
    try {
      yield "a";
      await new Promise((_, reject) => ctx.signal.addEventListener("abort", () => reject(ctx.signal.reason)));
    } finally {
      isCleanedUp = true;
    }
  });
  const response = await started(made);
  assert.match(await nextText(response), /^: run/);
  assert.match(await nextText(response), /^event: message.delta/);
  const waiting = nextText(response);
  const cancel = () => request("POST", "/agent/runs/r-1/cancel", { run_id: "r-1" });
  assert.equal((await made.handle(await cancel())).status, 202);
  assert.match(await waiting, /"code":"cancelled"/);
  assert(isCleanedUp);
  assert.equal((await response.frames?.next())?.done, true);
  assert.equal((await made.handle(await cancel())).status, 404);
});

test("closed response ends the run", async () => {
  let isAborted = false;
  const made = endpoint(
    async function* (ctx) {
      ctx.signal.addEventListener("abort", () => {
        isAborted = true;
      });
      yield "a";
      await never();
    },
    { maxRuns: 1 },
  );
  const response = await started(made);
  await nextText(response);
  await nextText(response);
  const [again, full] = [runRequest(), runRequest("r-2")];
  assert.equal((await made.handle(await request("POST", "/runs", again))).status, 409);
  const refused = await made.handle(await request("POST", "/runs", full));
  assert.deepEqual([refused.status, refused.headers["retry-after"]], [503, "1"]);
  response.close?.();
  assert(isAborted);
  // Its frames are never read.
  (await started(made)).close?.();
  await started(made);
});

test("routes answer with their status", async () => {
  const made = endpoint(async () => "a", { maxBodyBytes: 1500 });
  const unsigned = { headers: {}, body: new Uint8Array() };
  const cases: [Awaited<ReturnType<typeof request>> | (typeof unsigned & { method: string; path: string }), number][] = [
    [await request("GET", "/runners"), 200],
    [await request("GET", "/api/agent/runners"), 200],
    [{ method: "GET", path: "/healthz", ...unsigned }, 200],
    [await request("POST", "/fn", { action: "list_runners" }), 200],
    [await request("POST", "/fn", { action: "dance" }), 400],
    [await request("POST", "/fn", 7), 400],
    [await request("POST", "/runs", { runner_id: ID }), 400],
    [await request("POST", "/runs", { ...runRequest(), runner_id: "plugin:a/b/c" }), 404],
    [await request("GET", "/runs"), 404],
    [await request("POST", "/runs/r-9/cancel", { run_id: "r-9" }), 404],
    [{ method: "GET", path: "/runners", ...unsigned }, 401],
    [{ method: "POST", path: "/runs", ...unsigned }, 401],
    [await request("POST", "/fn", { action: "list_runners", pad: "x".repeat(2000) }), 413],
  ];
  for (const [sent, status] of cases) {
    const response = await made.handle(sent);
    assert.equal(response.status, status, `${sent.method} ${sent.path} ${response.body}`);
    response.close?.();
  }
});

test("ids are answered once", async () => {
  const made = endpoint(async () => "a");
  const sent = await request("GET", "/runners");
  assert.deepEqual([(await made.handle(sent)).status, (await made.handle(sent)).status], [200, 409]);
});

test("fetch handler streams and stops with its reader", async () => {
  let isAborted = false;
  const made = endpoint(async function* (ctx) {
    ctx.signal.addEventListener("abort", () => {
      isAborted = true;
    });
    yield "a";
    await never();
  });
  const { headers, body } = await request("POST", "/runs", runRequest());
  const response = await made.fetch(new Request("http://edge/api/runs", { method: "POST", headers, body }));
  assert.equal(response.headers.get("content-type"), "text/event-stream");
  const reader = response.body?.getReader();
  const next = async () => new TextDecoder().decode((await reader?.read())?.value);
  assert.equal(await next(), ": run\n\n");
  assert.match(await next(), /^event: message.delta/);
  await reader?.cancel();
  assert(isAborted);
  const big = { method: "POST", body: "x".repeat(9 * 1024 * 1024) };
  assert.equal((await made.fetch(new Request("http://edge/api/runs", big))).status, 413);
});

test("manifest follows from the options", async () => {
  const made = new Endpoint({ secret: SECRET });
  made.runner({ id: ID, label: "Test", permissions: { tools: ["call"] } }, async () => "a");
  const { runners } = JSON.parse((await made.handle(await request("GET", "/runners"))).body);
  assert.deepEqual(runners[0].label, { en_US: "Test" });
  assert.equal(runners[0].capabilities.tool_calling, true);
  assert.equal(runners[0].capabilities.knowledge_retrieval, false);
  assert.throws(() => made.runner({ id: "acme/test" }, async () => "a"), /twice/);
  for (const id of ["acme", "plugin:acme/test", "plugin:a//b", "plugin:a/b/c d"]) {
    assert.throws(() => made.runner({ id }, async () => "a"), /runner id/);
  }
  assert.throws(() => made.runner({ id: ID }, async () => "a"), /twice/);
});

test("token is renewed before it expires", async () => {
  const calls: [string, string | null][] = [];
  const send: typeof fetch = async (input, init) => {
    const path = new URL(`${input}`).pathname;
    calls.push([path, new Headers(init?.headers).get("authorization")]);
    if (!path.endsWith("/token")) return Response.json({ run_id: "r-1" });
    return Response.json({ token: "t-2", token_expires_at: Date.now() / 1000 + 900 });
  };
  const work: RunFunction = async (ctx) => {
    while (ctx.host.token === "t-1") await new Promise((resolve) => setImmediate(resolve));
    await ctx.host.json("GET", ["run"]);
    return "a";
  };
  const body = runRequest();
  body.host.token_expires_at = Date.now() / 1000 + 30;
  const found = await resultsOf(await started(endpoint(work, { fetch: send }), body));
  assert.equal(found.at(-1)?.type, "run.completed");
  assert.deepEqual(calls, [
    ["/host/v1/token", "Bearer t-1"],
    ["/host/v1/run", "Bearer t-2"],
  ]);
});

test("text after a tool call is a paragraph", async () => {
  const cases = [
    ["Let me look.", "It is 02:52.", "Let me look.\n\nIt is 02:52."],
    ["Let me look.\n", "It is 02:52.", "Let me look.\nIt is 02:52."],
    ["", "It is 02:52.", "It is 02:52."],
  ] as const;
  for (const [before, after, expected] of cases) {
    const found = await outcome(async function* () {
      yield before;
      for (const call of ["c-1", "c-2"]) {
        yield results.toolStarted(call, "clock", {});
        yield results.toolCompleted(call, "clock", { result: {} });
      }
      yield after.slice(0, 2);
      yield after.slice(2);
    });
    const shown = found.filter(([type]) => type === "message.delta").map(([, data]) => data.chunk.content);
    assert.equal(shown.join(""), expected);
    assert.equal(found.at(-2)?.[1].message.content, expected);
  }
});

test("sole text of a tool is no JSON", async () => {
  const cases: [unknown, string][] = [
    ["02:52", "02:52"],
    [{ text: "02:52" }, "02:52"],
    [{ value: "02:52" }, "02:52"],
    [{ content: [{ type: "text", text: "a" }, { type: "text", text: "b" }] }, "a\nb"],
    [[{ type: "text", text: "a" }], "a"],
    [{ text: "02:52", zone: "UTC" }, '{"text":"02:52","zone":"UTC"}'],
    [{ content: [{ type: "image" }] }, '{"content":[{"type":"image"}]}'],
    [{ text: 7 }, '{"text":7}'],
    [[], "[]"],
  ];
  for (const [result, text] of cases) {
    const messages: Message[] = [];
    const work: RunFunction = (ctx) => {
      const call = { id: "c", type: "function", function: { name: "clock", arguments: "{}" } } as const;
      return ctx.tools.callAll({ role: "assistant", tool_calls: [call] }, messages);
    };
    const found = await outcome(work, { fetch: async () => Response.json({ result }) });
    assert.equal(messages.at(-1)?.content, text);
    assert.deepEqual(found[1]?.[1].result, { text });
  }
});

/** A model that calls the clock in its first turns, and then answers. */
function loopingGateway(turnsWithCalls: number): typeof fetch {
  let turn = 0;
  return async (url, init) => {
    if (`${url}`.endsWith("/call")) return Response.json({ result: { text: "02:52" } });
    turn += 1;
    const call = { id: `c-${turn}`, type: "function", function: { name: "clock", arguments: "{}" } };
    const calls = turn <= turnsWithCalls ? { tool_calls: [call] } : {};
    assert.deepEqual(JSON.parse(`${init?.body}`).tools.map((tool: { name: string }) => tool.name), ["clock"]);
    const chunk = { role: "assistant", content: `Turn ${turn}.`, ...calls };
    return new Response(`data: ${JSON.stringify({ chunk })}\n\n`);
  };
}
const RESOURCES = { models: [{ model_id: "m" }], tools: [{ tool_name: "clock" }] };

test("agent loop calls tools until the answer", async () => {
  const messages: Message[] = [{ role: "user", content: "What time is it?" }];
  const made = endpoint((ctx) => ctx.agentLoop(messages), { fetch: loopingGateway(1) });
  const found = await resultsOf(await started(made, runRequest("r-1", { resources: RESOURCES })));
  const deltas = found.filter((one) => one.type === "message.delta");
  assert.equal(deltas.map((one) => one.data.chunk.content).join(""), "Turn 1.\n\nTurn 2.");
  const others = found.map((one) => one.type).filter((type) => type !== "message.delta");
  assert.deepEqual(others, ["tool.call.started", "tool.call.completed", "message.completed", "run.completed"]);
  assert.deepEqual(messages.map((message) => message.role), ["user", "assistant", "tool", "assistant"]);
});

test("checkpoint includes results before it", async () => {
  const stored: unknown[] = [];
  const send: typeof fetch = async (url, init) => {
    stored.push([init?.method, new URL(`${url}`).pathname, JSON.parse(`${init?.body}`)]);
    return Response.json({ version: 1, after: 0 });
  };
  const steps: RunFunction = async function* (ctx) {
    assert.equal(ctx.resume, undefined);
    await ctx.checkpoint({ step: 0 });
    yield "one";
    yield "two";
    await ctx.checkpoint({ step: 2 });
  };
  await resultsOf(await started(endpoint(steps, { fetch: send }), runRequest("r-1")));
  assert.deepEqual(stored, [
    ["PUT", "/host/v1/checkpoint", { value: { step: 0 } }],
    ["PUT", "/host/v1/checkpoint", { value: { step: 2 }, sequence: 2 }],
  ]);
});

test("attempt from checkpoint sends no joined message", async () => {
  const rest: RunFunction = async function* (ctx) {
    yield `after ${ctx.resume?.checkpoint}`;
  };
  const runtime = { resume: { checkpoint: 7, after: 3 } };
  const found = await resultsOf(await started(endpoint(rest), runRequest("r-1", { runtime })));
  assert.deepEqual(found.map((one) => [one.type, one.sequence]), [["message.delta", 1], ["run.completed", 2]]);
  assert.equal(found[0]?.data.chunk.content, "after 7");
});

test("agent loop continues from its checkpoint", async () => {
  const checkpoints: Message[][] = [];
  const model = loopingGateway(1);
  const send: typeof fetch = async (url, init) => {
    if (!`${url}`.endsWith("/checkpoint")) return model(url, init);
    checkpoints.push(JSON.parse(`${init?.body}`).value);
    return Response.json({ version: 1, after: 0 });
  };
  const work: RunFunction = (ctx) => ctx.agentLoop("What time is it?", { checkpoints: true });
  const shared = { resources: RESOURCES, context: { available_apis: { state: true } } };
  await resultsOf(await started(endpoint(work, { fetch: send }), runRequest("r-1", shared)));
  const roles = checkpoints.map((turns) => turns.map((message) => message.role));
  assert.deepEqual(roles, [["user", "assistant", "tool"]]);

  const again = endpoint(work, { fetch: loopingGateway(0) });
  const runtime = { resume: { checkpoint: checkpoints[0], after: 3 } };
  const found = await resultsOf(await started(again, runRequest("r-1", { ...shared, runtime })));
  assert.deepEqual(found.map((one) => one.type), ["message.delta", "run.completed"]);
});

test("agent loop is bounded", async () => {
  const made = endpoint((ctx) => ctx.agentLoop("What time is it?", { maxTurns: 2 }), { fetch: loopingGateway(9) });
  const found = await resultsOf(await started(made, runRequest("r-1", { resources: RESOURCES })));
  assert.equal(found.at(-1)?.data.code, "runner.no_answer");
  assert.equal(found.filter((one) => one.type === "tool.call.started").length, 2);
});

test("usage of models is reported at the end", async () => {
  const usage = { prompt_tokens: 3, completion_tokens: 1, total_tokens: 4 };
  const events = [{ chunk: { role: "assistant", content: "hi" } }, { usage }];
  const text = events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join("");
  const work: RunFunction = async function* (ctx) {
    for (let n = 0; n < 2; n++) yield* ctx.models.stream("hi");
  };
  const found = await resultsOf(await started(endpoint(work, { fetch: async () => new Response(text) })));
  assert.deepEqual(found.at(-1)?.usage, { prompt_tokens: 6, completion_tokens: 2, total_tokens: 8 });
});

test("tool calls are joined with their fields", async () => {
  const call = (text: string) => ({ id: "c-1", type: "function", function: { name: "add", arguments: text } });
  const chunks = [
    { content: "thought", provider_specific_fields: { p: 1 } },
    { content: "Let", all_content: "Let" },
    { tool_calls: [call('{"a"')] },
    { tool_calls: [call(":1}")] },
  ];
  const text = chunks.map((chunk) => `data: ${JSON.stringify({ chunk })}\n\n`).join("");
  let found: unknown;
  const work: RunFunction = async (ctx) => {
    const answer = ctx.models.stream("hi");
    const pieces: string[] = [];
    for await (const piece of answer) pieces.push(piece);
    found = [pieces, answer.message];
  };
  await outcome(work, { fetch: async () => new Response(text) });
  const message = { role: "assistant", content: "Let", tool_calls: [call('{"a":1}')], provider_specific_fields: { p: 1 } };
  assert.deepEqual(found, [["thought", "Let"], message]);
});

test("run ends by codes of the run only", () => {
  const cases: [number, string, boolean, Record<string, string>, boolean][] = [
    [401, "unauthenticated", false, {}, true],
    [409, "cancelled", false, {}, true],
    [504, "deadline_exceeded", false, {}, true],
    [504, "deadline_exceeded", true, {}, false],
    [504, "deadline_exceeded", false, { reason: "upstream_timeout" }, false],
    [403, "unauthorized", false, {}, false],
  ];
  for (const [status, code, retryable, details, expected] of cases) {
    assert.equal(new ApiError(status, code, "m", retryable, details).isRunOver, expected, code);
  }
});

test("oldest unverified bodies are dropped", async () => {
  const bodies = new UnverifiedBytes(1000);
  const piece = new Uint8Array(600);
  const events = new EventTarget();
  const waiting = new Promise((resolve) => events.addEventListener("resume", resolve));
  const stalled = new Promise((resolve) => events.addEventListener("stalled", resolve));
  async function* stalling() {
    yield piece;
    events.dispatchEvent(new Event("stalled"));
    await waiting;
    yield piece;
  }
  const tooLarge = () => new Error("too large");
  const first = bodies.read(stalling(), 2000, tooLarge);
  await stalled;
  const second = await bodies.read(piecesOf(new Blob([piece, piece]).stream()), 2000, tooLarge);
  assert.equal(second.length, 1200, "a body drops others only");
  events.dispatchEvent(new Event("resume"));
  await assert.rejects(first, (error) => error instanceof Rejection && error.status === 503);
  await assert.rejects(bodies.read(piecesOf(new Blob([piece, piece]).stream()), 1000, tooLarge), /too large/);
});

test("doubled headers are refused", async () => {
  const made = endpoint(async () => "");
  for (const name of ["webhook-id", "webhook-timestamp", "webhook-signature"] as const) {
    const signed = await request("GET", "/runners");
    for (const doubled of [{ [name]: [signed.headers[name], "other"] }, { [name.toUpperCase()]: "other" }]) {
      const response = await made.handle({ ...signed, headers: { ...signed.headers, ...doubled } });
      assert.equal(response.status, 401);
      assert.match(response.body, new RegExp(`${name} was sent twice`));
    }
    assert.equal((await made.handle({ ...signed, headers: { ...signed.headers, [name]: [signed.headers[name]] } })).status, 200);
  }
});
