// A client generated from the API document against a gateway: prints what it was told, typed.
import { ok, strictEqual } from "node:assert/strict";
import { getRun, listRuns, postEvent } from "./generated/index.js";
import type { AgentRun, AgentRunEvent, ErrorBody, EventEnvelope } from "./generated/index.js";
import type { PostEventErrors, PostEventResponse, PostEventResponses } from "./generated/index.js";
import { client } from "./generated/client.gen.js";

const { RUNNEL_URL: baseUrl, RUNNEL_API_KEY: auth } = process.env;
ok(baseUrl && auth);
client.setConfig({ baseUrl, auth });
const streaming = { Accept: "text/event-stream" };
const security = [{ scheme: "bearer", type: "http" }] as const;

async function read(stream: AsyncIterable<PostEventResponse>): Promise<AgentRunEvent[]> {
  const events: AgentRunEvent[] = [];
  for await (const event of stream) {
    ok("sequence" in event);
    events.push(event);
  }
  return events;
}

// Posts an event and reads its run from the same answer.
const event: EventEnvelope = {
  event_type: "message.received",
  event_id: "typescript-1",
  conversation: { conversation_id: "c-7" },
  input: { text: "hello big world" },
};
const posted = await postEvent({ body: event, headers: streaming });
const events = await read(posted.stream);
const run_id = events[0]?.run_id;
ok(run_id);

// Posts another without waiting for its run.
const another = { ...event, event_id: "typescript-2" };
const answer = await client.post<PostEventResponses, PostEventErrors>({ url: "/v1/events", body: another, security });
const accepted: PostEventResponse | undefined = answer.data;
ok(accepted && "run_url" in accepted);

// Goes on after the second event.
const resumed = await client.sse.get<{ 200: AgentRunEvent }>({
  url: "/v1/runs/{run_id}/events",
  path: { run_id },
  headers: { ...streaming, "Last-Event-ID": "2" },
  security,
});
const rest = await read(resumed.stream);

const found = await getRun({ path: { run_id } });
const run: AgentRun | undefined = found.data;
const listed = await listRuns({ query: { limit: 1 } });
const runs: AgentRun[] | undefined = listed.data?.items;

const missing = await getRun({ path: { run_id: "00000000-0000-7000-8000-000000000000" } });
const error: ErrorBody | undefined = missing.error;
strictEqual(missing.response?.status, 404);

console.log(JSON.stringify({ run_id, events, rest, run, accepted, runs, error }));
