// The package against the real gateway.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type IncomingMessage, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, describe, test } from "node:test";
import {
  type ApiError,
  Client,
  deltaText,
  type EventEnvelope,
  message,
  NoRunError,
  type RunEvent,
  type RunFilter,
  type RunStream,
} from "../src/index.js";
import { toNodeHandler } from "../src/node.js";
import { Endpoint, results } from "../src/runner/index.js";
import type { Message } from "../src/types.js";
import { conform, type Gateway, NEEDS_GATEWAY, SECRET, startCutter, startGateway } from "./gateway_process.js";

console.warn = () => {};
const endpoint = new Endpoint({ secret: SECRET });

const counts = { state: ["conversation" as const] };
endpoint.runner({ id: "plugin:acme/test/echo", label: "Echo", permissions: counts }, async function* (ctx) {
  await ctx.host.json("GET", ["run"]);
  for (const word of ctx.text.split(" ")) yield `${word} `;
  if (ctx.conversationId && ctx.state.isGranted) yield results.state("count", (await ctx.state.get("count", 0)) + 1);
});

const permissions = {
  models: ["stream" as const],
  tools: ["call" as const],
  knowledge_bases: ["retrieve" as const],
  history: ["page" as const],
  artifacts: ["metadata" as const, "read" as const, "create" as const],
  state: ["conversation" as const],
};
endpoint.runner({ id: "plugin:acme/test/agent", permissions }, async function* (ctx) {
  const messages: Message[] = [...(await ctx.history.messages()), { role: "user", content: ctx.text }];
  let answer = ctx.models.stream(messages, { tools: ctx.tools.offered() });
  yield* answer;
  while (answer.toolCalls.length > 0) {
    yield* ctx.tools.callAll(answer.message, messages);
    answer = ctx.models.stream(messages, { tools: ctx.tools.offered() });
    yield* answer;
  }
  const passages = await ctx.knowledge.search(ctx.text);
  const version = await ctx.state.put("turns", (await ctx.state.get("turns", 0)) + 1);
  const files = await Promise.all(ctx.files.attachments.map((one) => ctx.files.read(one.id ?? "")));
  yield results.file(await ctx.files.upload("a,b\n", "table.csv", "text/csv"));
  const sizes = files.map((file) => file.length);
  yield results.log(`history ${messages.length}, passages ${passages.length}, version ${version}, files ${sizes}`);
  yield results.message(answer.message);
});

const asks = { id: "plugin:acme/test/question", permissions: { interactions: ["request" as const] } };
endpoint.runner(asks, async function* (ctx) {
  yield results.question({
    interaction_id: "desk",
    title: "Which desk?",
    fallback_text: "Which desk? a or b",
    fields: [{ id: "desk", label: "Desk", type: "text", required: true }],
    actions: [{ id: "book", label: "Book" }],
    await: true,
  });
  const answer = await ctx.interactions.wait("desk");
  yield `${answer.status} ${answer.action_id} ${JSON.stringify(answer.values)}`;
});

endpoint.runner({ id: "plugin:acme/test/endless" }, async function* (ctx) {
  yield "begun";
  await once(ctx.signal, "abort");
});

/** A server for the endpoint; `path` is where it is mounted. */
async function listen(server: Server, path = ""): Promise<{ url: string; close(): void }> {
  server.keepAliveTimeout = 10_000;
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const close = () => {
    server.close();
    server.closeAllConnections();
  };
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}${path}`, close };
}

/** As a Fetch server would do: the handler sees `Request` and `Response` only. */
function fetchServer(): Server {
  return createServer(async (request: IncomingMessage, response) => {
    const pieces: Buffer[] = [];
    for await (const piece of request) pieces.push(piece);
    const { method = "GET", url = "/" } = request;
    const body = method === "GET" ? null : Buffer.concat(pieces);
    const headers = request.headers as Record<string, string>;
    const answer = await endpoint.fetch(new Request(`http://edge${url}`, { method, headers, body }));
    response.writeHead(answer.status, Object.fromEntries(answer.headers));
    const reader = answer.body?.getReader();
    response.once("close", () => reader?.cancel());
    for (let step = await reader?.read(); step && !step.done; step = await reader?.read()) response.write(step.value);
    response.end();
  });
}

async function eventsOf(stream: RunStream): Promise<RunEvent[]> {
  const events: RunEvent[] = [];
  for await (const event of stream) events.push(event);
  return events;
}

function textOf(events: RunEvent[]): string {
  return events.map(deltaText).join("");
}

function logOf(events: RunEvent[]): string {
  return events.flatMap((event) => (event.type === "processor.log" ? [event.data.text] : [])).join();
}

let conversations = 0;
function posted(runner: string, text: string, conversation = `c-${++conversations}`): EventEnvelope {
  return { ...message(text, conversation), source: runner };
}

describe("with a gateway", NEEDS_GATEWAY, () => {
  let gateway: Gateway;
  let runner: { url: string; close(): void };
  let client: Client;

  before(async () => {
    runner = await listen(createServer(toNodeHandler(endpoint)));
    gateway = await startGateway(runner.url, ["echo", "agent", "question", "endless"]);
    client = new Client({ url: gateway.url, apiKey: gateway.key });
  });
  after(async () => {
    await gateway?.stop();
    runner?.close();
  });

  test("broken streams lose nothing", async () => {
    const cutter = await startCutter(gateway.url, 1500);
    const text = "word ".repeat(40).trim();
    const stream = new Client({ url: cutter.url, apiKey: gateway.key }).stream(posted("echo", text));
    const events = await eventsOf(stream);
    cutter.close();
    assert(cutter.cuts() > 1);
    assert.equal(textOf(events), `${text} `);
    assert.deepEqual(events, await eventsOf(client.follow(stream.runId ?? "")));
    assert.equal((await client.run(stream.runId ?? "")).status, "completed");
  });

  test("unwanted events start no run", async () => {
    await assert.rejects(eventsOf(client.stream({ event_type: "tick.hourly" })), NoRunError);
    const { run_id: runId, reason, hint } = await client.postEvent({ event_type: "tick.hourly" });
    assert.deepEqual([runId ?? null, reason], [null, "no_agent"]);
    assert.match(hint ?? "", /tick\.hourly/);
  });

  test("files travel with events", async () => {
    const upload = await client.upload("12345", "five.txt", "text/plain");
    const event = { ...message("hi", "c-files", { files: [upload.artifact_id] }), source: "agent" };
    const events = await eventsOf(client.stream(event));
    const created = events.find((one) => one.type === "artifact.created");
    const bytes = await client.download(`${created?.data.artifact_id}`);
    assert.equal(new TextDecoder().decode(bytes), "a,b\n");
    assert.equal(logOf(events), "history 1, passages 0, version 1, files 5");
  });

  test("agent uses model, tools and history", async () => {
    const first = await eventsOf(client.stream(posted("agent", "what time is it?", "c-agent")));
    assert.deepEqual(first.slice(0, 2).map((one) => one.type), ["tool.call.started", "tool.call.completed"]);
    assert.match(textOf(first), /^Clock: /);
    const second = await eventsOf(client.stream(posted("agent", "and now?", "c-agent")));
    assert.equal(textOf(second), "Echo: and now?");
    assert.match(logOf(second), /^history 3, passages 0, version 2/);
    const run = await client.run(second[0]?.run_id ?? "");
    assert(Number(run.usage?.total_tokens) > 0);
    assert.deepEqual(run.metadata, { rejected: 0, duplicates: 0, gaps: 0 });
    const roles: string[] = [];
    for await (const item of client.history("c-agent", { forward: true })) roles.push(item.role);
    assert.deepEqual(roles, ["user", "assistant", "user", "assistant"]);
    const counts = new Map<string, number>();
    for await (const one of client.conversations()) counts.set(one.conversation_id, one.message_count);
    assert.equal(counts.get("c-agent"), 4);
  });

  test("answers reach the waiting run", async () => {
    const delivery = { surface: "test", interactions: { field_types: ["text"], action_styles: ["default"] } };
    const events: RunEvent[] = [];
    for await (const event of client.stream({ ...posted("question", "hi"), delivery })) {
      events.push(event);
      if (event.type !== "action.requested") continue;
      for await (const pending of client.interactions({ runId: event.run_id })) {
        assert.deepEqual(pending, await client.interaction(pending.id));
        assert.equal((await client.answer(pending, "book", { desk: "b" })).status, "submitted");
      }
    }
    assert.equal(textOf(events), 'submitted book {"desk":"b"}');
  });

  test("cancelled run ends as cancelled", async () => {
    const events: RunEvent[] = [];
    for await (const event of client.stream(posted("endless", "hi"))) {
      events.push(event);
      if (event.type === "message.delta") await client.cancel(event.run_id);
    }
    const last = events.at(-1);
    assert(last?.type === "run.failed");
    assert.equal(last.data.code, "cancelled");
    assert.equal((await client.run(last.run_id)).status, "cancelled");
  });

  test("ended runs are listed and retried", async () => {
    const conversationId = "c-retried";
    for await (const event of client.stream(posted("endless", "hi", conversationId))) {
      if (event.type === "message.delta") await client.cancel(event.run_id);
    }
    const listed = async (filter: RunFilter) => {
      const ids: string[] = [];
      for await (const run of client.runs({ conversationId, ...filter })) ids.push(run.run_id);
      return ids;
    };
    const [ended = ""] = await listed({ statuses: ["cancelled"] });
    const again = await client.retry(ended);
    assert.equal(again.retry_of, ended);
    assert.equal((await client.retry(ended)).run_id, again.run_id);
    await assert.rejects(client.retry(again.run_id), (error: ApiError) => {
      return error.status === 409 && error.details.reason === "run_live";
    });
    await client.cancel(again.run_id);
    assert.deepEqual(await listed({}), [again.run_id, ended]);
    assert.deepEqual(await listed({ botId: "b" }), []);
  });

  test("concurrent runs do not mix", async () => {
    const texts = Array.from({ length: 20 }, (_, number) => `run number ${number}`);
    const answers = await Promise.all(texts.map(async (text) => textOf(await eventsOf(client.stream(posted("echo", text))))));
    assert.deepEqual(answers, texts.map((text) => `${text} `));
  });

  const servers: [string, () => Server, string, string[]][] = [
    ["node", () => createServer(toNodeHandler(endpoint)), "", []],
    ["fetch", fetchServer, "/api/agent", []],
    ["fetch at a single URL", fetchServer, "/fn", ["--mode", "single_url"]],
  ];
  for (const [name, server, path, options] of servers) {
    test(`adapter passes conform by ${name}`, async () => {
      const served = await listen(server(), path);
      try {
        const { checks } = await conform(served.url, ...options);
        const outcomes = new Map(checks.map((check) => [check.id, check.outcome]));
        for (const id of ["signature.runs_an_id_once", "cancel.says_cancelled", "callbacks.token", "deadline.respected"]) {
          assert.equal(outcomes.get(id), "pass", id);
        }
        const bad = checks.filter((check) => check.outcome === "fail" || check.outcome === "warn");
        assert.deepEqual(bad, []);
      } finally {
        served.close();
      }
    });
  }
});
