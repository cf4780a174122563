// A client with types from the API document (openapi-typescript) and openapi-fetch, against a gateway: prints the
// typed responses.
import { ok, strictEqual } from "node:assert/strict";
import { EventSourceParserStream } from "eventsource-parser/stream";
import createClient from "openapi-fetch";
import type { components, paths } from "./gateway.js";

type AgentRunEvent = components["schemas"]["AgentRunEvent"];

const { RUNNEL_URL: baseUrl, RUNNEL_API_KEY: key } = process.env;
ok(baseUrl && key);
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${key}` } });

async function read(stream: ReadableStream<Uint8Array> | null | undefined): Promise<AgentRunEvent[]> {
  ok(stream);
  const messages = stream
    .pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>)
    .pipeThrough(new EventSourceParserStream());
  const events: AgentRunEvent[] = [];
  const reader = messages.getReader();
  for (let next = await reader.read(); !next.done; next = await reader.read()) {
    events.push(JSON.parse(next.value.data));
  }
  return events;
}

/** The payload follows from the type. */
function textOf(events: AgentRunEvent[]): string {
  let text = "";
  for (const event of events) {
    // @ts-expect-error: there is no such type
    if (event.type === "mesage.delta") throw new Error();
    // @ts-expect-error: only some types have a chunk
    void event.data?.chunk;
    if (event.type === "message.delta") text += event.data.chunk.content ?? "";
    if (event.type === "run.failed") throw new Error(event.data.message ?? event.data.code);
  }
  return text;
}

// Posts an event and reads its run from the same answer.
const body: components["schemas"]["EventEnvelope"] = {
  event_type: "message.received",
  event_id: "openapi-fetch-1",
  input: { text: "hello big world" },
  conversation: { conversation_id: "c-7" },
};
const posted = await client.POST("/v1/runs/stream", { body, parseAs: "stream" });
const events = await read(posted.data);
const run_id = events[0]?.run_id;
ok(run_id);

// Posts another without waiting for its run.
const { data: accepted } = await client.POST("/v1/events", { body: { ...body, event_id: "openapi-fetch-2" } });
ok(accepted?.run_id);

// Resumes after the second event.
const resumed = await client.GET("/v1/runs/{run_id}/stream", {
  params: { path: { run_id }, header: { "Last-Event-ID": "2" } },
  parseAs: "stream",
});
const rest = await read(resumed.data);
const page = await client.GET("/v1/runs/{run_id}/events", { params: { path: { run_id } } });
strictEqual(page.data?.items.length, events.length);

const { data: run } = await client.GET("/v1/runs/{run_id}", { params: { path: { run_id } } });
const { data: listed } = await client.GET("/v1/runs", { params: { query: { limit: 1 } } });
const runs = listed?.items;

const path = { run_id: "00000000-0000-7000-8000-000000000000" };
const { error, response } = await client.GET("/v1/runs/{run_id}", { params: { path } });
strictEqual(response.status, 404);
strictEqual(error?.error.code, "not_found");

console.log(JSON.stringify({ run_id, text: textOf(events), events, rest, run, accepted, runs, error }));
