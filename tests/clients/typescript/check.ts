// A client generated from the API document by @hey-api/openapi-ts, against a gateway: prints the typed responses.
import { ok, strictEqual } from "node:assert/strict";
import { getRun, listRunEvents, listRuns, postEvent, streamEvent, streamRunEvents } from "./generated";
import type { AgentRun, AgentRunEvent, ErrorBody, EventAccepted, EventEnvelope } from "./generated";
import { client } from "./generated/client.gen";

const { RUNNEL_URL: baseUrl, RUNNEL_API_KEY: auth } = process.env;
ok(baseUrl && auth);
client.setConfig({ baseUrl, auth });

/** Without it the client retries a refused request forever and returns an empty stream. */
const onSseError = (error: unknown) => {
  throw error;
};

async function read(stream: AsyncIterable<AgentRunEvent>): Promise<AgentRunEvent[]> {
  const events: AgentRunEvent[] = [];
  for await (const event of stream) events.push(event);
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
const body: EventEnvelope = {
  event_type: "message.received",
  event_id: "typescript-1",
  input: { text: "hello big world" },
  conversation: { conversation_id: "c-7" },
};
const posted = await streamEvent({ body, onSseError });
const events = await read(posted.stream);
const run_id = events[0]?.run_id;
ok(run_id);

// Posts another without waiting for its run.
const answer = await postEvent({ body: { ...body, event_id: "typescript-2" } });
const accepted: EventAccepted | undefined = answer.data;
ok(accepted?.run_id);

// Resumes after the second event.
const resumed = await streamRunEvents({ path: { run_id }, headers: { "Last-Event-ID": "2" }, onSseError });
const rest = await read(resumed.stream);
const page = await listRunEvents({ path: { run_id } });
strictEqual(page.data?.items.length, events.length);

// An event that no agent takes has no stream: an error, and not an empty stream.
const other = await streamEvent({ body: { event_type: "message.deleted" }, onSseError });
const refused = await read(other.stream).then(String, String);
ok(refused.includes("409"), refused);

const found = await getRun({ path: { run_id } });
const run: AgentRun | undefined = found.data;
const listed = await listRuns({ query: { limit: 1 } });
const runs: AgentRun[] | undefined = listed.data?.items;

const missing = await getRun({ path: { run_id: "00000000-0000-7000-8000-000000000000" } });
const error: ErrorBody | undefined = missing.error;
strictEqual(missing.response?.status, 404);

console.log(JSON.stringify({ run_id, text: textOf(events), events, rest, run, accepted, runs, error }));
