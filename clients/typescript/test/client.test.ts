// The client against scripted responses. gateway.test.ts has the real gateway.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import {
  ApiError,
  Client,
  deltaText,
  GatewayUnreachableError,
  message,
  NoRunError,
  type RunEvent,
  RunFailedError,
  type RunStream,
  StreamLostError,
} from "../src/index.js";

const RUN = "01a20468-f8ea-76a6-9b32-32089ce69a5c";
type Answer = () => Response;
type Sent = { method: string; url: URL; headers: Headers; body: string };

/** A client whose requests are answered in order; the last answer repeats. */
function scripted(answers: Answer[], patienceSeconds = 5): { client: Client; sent: Sent[] } {
  const sent: Sent[] = [];
  const send: typeof fetch = async (input, init) => {
    const { method = "GET", headers, body } = init ?? {};
    sent.push({ method, url: new URL(`${input}`), headers: new Headers(headers), body: String(body) });
    return (answers.length > 1 ? answers.shift() : answers[0])?.() as Response;
  };
  return { client: new Client({ url: "http://gateway", apiKey: "rnl_key", patienceSeconds, fetch: send }), sent };
}

function frame(sequence: number, type = "message.delta", data: unknown = undefined): string {
  const chunk = { chunk: { role: "assistant", content: `${sequence}` } };
  const event = { run_id: RUN, sequence, type, data: data ?? chunk };
  return `id: ${sequence}\nevent: ${type}\ndata: ${JSON.stringify(event)}\n\n`;
}

/** A stream of events, which breaks at its end if it is `cut`. */
function stream(frames: string[], cut = false): Answer {
  const headers = { "content-type": "text/event-stream", "runnel-run-id": RUN };
  return () => {
    let isSent = false;
    const body = new ReadableStream<Uint8Array>({
      pull(controller) {
        if (!isSent) controller.enqueue(new TextEncoder().encode(`: run ${RUN}\n\n${frames.join("")}`));
        else if (cut) controller.error(new TypeError("terminated"));
        else controller.close();
        isSent = true;
      },
    });
    return new Response(body, { headers });
  };
}

const refusal =
  (status: number, code: string, headers: Record<string, string> = {}): Answer =>
  () =>
    Response.json({ error: { code, message: "m" } }, { status, headers });
const unreachable: Answer = () => {
  throw new TypeError("fetch failed", { cause: new Error("connect ECONNREFUSED") });
};
const END = frame(3, "run.completed", { finish_reason: "stop" });

async function sequences(events: RunStream): Promise<number[]> {
  const found: number[] = [];
  for await (const event of events) found.push(event.sequence);
  return found;
}

test("stream resumes after the last event", async () => {
  const { client, sent } = scripted([
    stream([frame(1), "data: {"], true),
    stream([frame(1), frame(2)], true),
    stream([END]),
  ]);
  assert.deepEqual(await sequences(client.stream(message("hi"))), [1, 2, 3]);
  assert.deepEqual(
    sent.map((one) => [one.method, one.url.pathname, one.headers.get("last-event-id")]),
    [
      ["POST", "/v1/events", null],
      ["GET", `/v1/runs/${RUN}/events`, "1"],
      ["GET", `/v1/runs/${RUN}/events`, "2"],
    ],
  );
  assert.equal(sent[2]?.headers.get("authorization"), "Bearer rnl_key");
});

test("post repeats with its key before the first event", async () => {
  const answers = [unreachable, stream([], true), refusal(503, "unavailable"), stream([END])];
  const { client, sent } = scripted(answers);
  assert.deepEqual(await sequences(client.stream(message("hi"))), [3]);
  assert.deepEqual(new Set(sent.map((one) => one.method)), new Set(["POST"]));
  assert.equal(new Set(sent.map((one) => one.headers.get("idempotency-key"))).size, 1);
});

test("event id replaces the random key", async () => {
  const { client, sent } = scripted([stream([END])]);
  await sequences(client.stream({ ...message("hi"), event_id: "m-1" }));
  assert.equal(sent[0]?.headers.get("idempotency-key"), null);
});

test("notices without id are no events", async () => {
  const draining = 'event: gateway.draining\ndata: {"sequence": 9, "type": "gateway.draining"}\n\n';
  const { client } = scripted([stream([frame(1), draining]), stream([frame(2), END])]);
  assert.deepEqual(await sequences(client.stream(message("hi"))), [1, 2, 3]);
});

test("retries end with the patience", async () => {
  const broken = scripted([stream([frame(1)], true), unreachable], 0.1).client;
  await assert.rejects(sequences(broken.stream(message("hi"))), (error: StreamLostError) => {
    assert(error instanceof StreamLostError);
    return error.runId === RUN && error.after === 1;
  });
  await assert.rejects(scripted([unreachable], 0.1).client.postEvent(message("hi")), GatewayUnreachableError);
  await assert.rejects(scripted([refusal(503, "unavailable")], 0.1).client.run(RUN), /unavailable/);
});

test("waits as long as the gateway asks", async () => {
  const { client, sent } = scripted([refusal(429, "rate_limited", { "retry-after": "60" }), stream([END])]);
  await assert.rejects(client.postEvent(message("hi")), /rate_limited/);
  assert.equal(sent.length, 1);
});

test("faults of the caller are not retried", async () => {
  for (const status of [302, 400, 401, 404, 409, 410]) {
    const { client, sent } = scripted([refusal(status, "c")]);
    await assert.rejects(sequences(client.follow(RUN)), (error: ApiError) => {
      return error instanceof ApiError && error.status === status && error.code === "c";
    });
    assert.equal(sent.length, 1);
  }
});

test("rejected key is named", async () => {
  const { client } = scripted([refusal(401, "unauthenticated")]);
  const reason = /rejected; check apiKey or RUNNEL_API_KEY/;
  await assert.rejects(client.run(RUN), reason);
  await assert.rejects(sequences(client.stream(message("hi"))), reason);
  await assert.rejects(client.download("a"), reason);
});

test("event without agent throws", async () => {
  const { client } = scripted([() => Response.json({ event_id: "m", reason: "no_agent", hint: "say received" }, { status: 202 })]);
  await assert.rejects(sequences(client.stream(message("hi"))), (error: NoRunError) => {
    return error instanceof NoRunError && error.message.endsWith("no_agent; say received") && error.hint === "say received";
  });
});

test("follow of an ended run is empty", async () => {
  assert.deepEqual(await sequences(scripted([() => new Response(null, { status: 204 })]).client.follow(RUN, 3)), []);
});

test("ask throws the failure of the run", async () => {
  const failed = frame(2, "run.failed", { code: "timeout", message: "too late" });
  await assert.rejects(scripted([stream([frame(1), failed])]).client.ask("hi"), RunFailedError);
});

test("leaving the loop closes the connection", async () => {
  let isCancelled = false;
  const body = new ReadableStream<Uint8Array>({
    start: (controller) => controller.enqueue(new TextEncoder().encode(frame(1))),
    cancel: () => {
      isCancelled = true;
    },
  });
  const { client } = scripted([() => new Response(body, { headers: { "content-type": "text/event-stream" } })]);
  for await (const event of client.follow(RUN)) {
    assert.equal(event.sequence, 1);
    break;
  }
  assert(isCancelled);
});

test("an aborted signal ends the retries", async () => {
  const abort = new AbortController();
  const { client } = scripted([unreachable]);
  const reading = sequences(client.stream(message("hi"), { signal: abort.signal }));
  abort.abort(new Error("enough"));
  await assert.rejects(reading, /enough/);
});

test("pages are followed to the end", async () => {
  const { client, sent } = scripted([
    () => Response.json({ items: [{ id: "1" }], has_more: true, next_cursor: "c" }),
    () => Response.json({ items: [{ id: "2" }], has_more: false }),
  ]);
  const ids: string[] = [];
  for await (const one of client.interactions({ conversationId: "c-1" })) ids.push(one.id);
  assert.deepEqual(ids, ["1", "2"]);
  assert.equal(sent[1]?.url.search, "?conversation_id=c-1&status=open&after=c");
});

test("a claimed action is finished with its token", async () => {
  const answer = () => Response.json({ action: { id: "a-1" }, claim_token: "secret" });
  const { client, sent } = scripted([answer, answer, answer]);
  const claimed = await client.claimAction("a-1", { leaseSeconds: 5 });
  await client.finishAction(claimed, { output: { message_id: "m" } });
  const error = { code: "unsupported", message: "no such action" };
  await client.finishAction(claimed, { error });
  const result = "/v1/actions/a-1/result";
  assert.deepEqual(sent.map((one) => one.url.pathname), ["/v1/actions/a-1/claim", result, result]);
  assert.deepEqual(sent.map((one) => JSON.parse(one.body)), [
    { lease_seconds: 5 },
    { claim_token: "secret", status: "done", output: { message_id: "m" } },
    { claim_token: "secret", status: "failed", error },
  ]);
});

test("runs are filtered and paged", async () => {
  const { client, sent } = scripted([
    // A page that scanned its most runs has no items, and still a next page.
    () => Response.json({ items: [], has_more: true, next_cursor: "c" }),
    () => Response.json({ items: [{ run_id: RUN }], has_more: false }),
  ]);
  const ids: string[] = [];
  for await (const run of client.runs({ statuses: ["failed", "timeout"], conversationId: "c-1", botId: "" })) ids.push(run.run_id);
  assert.deepEqual(ids, [RUN]);
  const query = "?statuses=failed%2Ctimeout&conversation_id=c-1&bot_id=&limit=100";
  assert.deepEqual(sent.map((one) => one.url.pathname + one.url.search), [`/v1/runs${query}`, `/v1/runs${query}&cursor=c`]);
});

test("single status needs no list", async () => {
  const { client, sent } = scripted([() => Response.json({ items: [], has_more: false })]);
  for await (const _ of client.runs({ statuses: "failed" })) assert.fail();
  assert.equal(sent[0]?.url.searchParams.get("statuses"), "failed");
});

test("lost response of a retry is repeated", async () => {
  const { client, sent } = scripted([unreachable, () => Response.json({ run_id: "r-2", retry_of: RUN })]);
  assert.equal((await client.retry(RUN)).retry_of, RUN);
  assert.deepEqual(sent.map((one) => [one.method, one.url.pathname]), Array(2).fill(["POST", `/v1/runs/${RUN}/retry`]));
});

test("deltas without text are empty", () => {
  for (const data of [{}, { chunk: null }, { chunk: { role: "assistant", tool_calls: [] } }]) {
    assert.equal(deltaText({ run_id: RUN, sequence: 1, type: "message.delta", data } as unknown as RunEvent), "");
  }
});

test("ids stay one segment of the path", async () => {
  const { client, sent } = scripted([() => Response.json({ items: [], has_more: false })]);
  for await (const _ of client.history("a/../b")) assert.fail();
  assert.equal(sent[0]?.url.pathname, "/v1/conversations/a%2F..%2Fb/history");
  assert.throws(() => client.run(".."), /no id/);
  const accepted = scripted([() => Response.json({ event_id: "e", run_id: ".." }, { status: 202 })]);
  await assert.rejects(async () => {
    for await (const _ of accepted.client.stream(message("hi"))) assert.fail();
  }, /no id/);
});

test("events are bounded", async () => {
  for (const line of [`data: ${"x".repeat(1_000_000)}\n`, `id: ${"1".repeat(100_000)}\n`, "x".repeat(1_000_000)]) {
    const piece = new TextEncoder().encode(line);
    let sent = 0;
    const body = new ReadableStream<Uint8Array>({
      pull(controller) {
        sent += piece.length;
        if (sent < 40_000_000) controller.enqueue(piece);
        else controller.close();
      },
    });
    const { client } = scripted([() => new Response(body, { headers: { "content-type": "text/event-stream" } })]);
    await assert.rejects(sequences(client.follow(RUN)), /an event of the stream has more than/);
  }
});

test("bound of a download is that of decoded bytes", async () => {
  const packed = gzipSync(Buffer.alloc(50_000_000, "x"));
  const server = createServer((_, response) => response.writeHead(200, { "content-encoding": "gzip" }).end(packed));
  await once(server.listen(0, "127.0.0.1"), "listening");
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  try {
    await assert.rejects(new Client({ url, apiKey: "rnl_key" }).download("a", 1000), /larger than 1000 bytes/);
  } finally {
    server.closeAllConnections();
    server.close();
  }
});

test("downloads are bounded", async () => {
  const { client } = scripted([() => new Response("12345")]);
  assert.equal((await client.download("a")).length, 5);
  await assert.rejects(client.download("a", 4), /larger than 4 bytes/);
});

test("client without key names the variable", () => {
  const previous = process.env.RUNNEL_API_KEY;
  delete process.env.RUNNEL_API_KEY;
  assert.throws(() => new Client(), /RUNNEL_API_KEY/);
  if (previous !== undefined) process.env.RUNNEL_API_KEY = previous;
});
