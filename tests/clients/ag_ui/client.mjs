// The official AG-UI client on an agent of the gateway: reads {"url", "key"}, cuts and resumes a stream after each event,
// and answers an interrupt. Each event must fit the official schemas, without members that they do not know.
import { readFileSync } from "node:fs";
import { HttpAgent } from "@ag-ui/client";
import { EventSchema } from "@ag-ui/core/schemas";

const given = JSON.parse(readFileSync(0, "utf8"));
const headers = { authorization: `Bearer ${given.key}` };
const warnings = [];
console.warn = (...texts) => warnings.push(texts.join(" "));

function agentOf(threadId, fetch, path = "/faces/ag-ui/main") {
  const agent = new HttpAgent({ url: given.url + path, headers, threadId, ...(fetch ? { fetch } : {}) });
  agent.messages = [{ id: "m-1", role: "user", content: "a table" }];
  return agent;
}

async function run(agent, parameters) {
  const events = [];
  const result = await agent.runAgent(parameters, {
    onEvent: ({ event }) => void events.push(EventSchema.parse(event)),
  });
  const texts = agent.messages.filter((message) => message.role === "assistant" && message.content);
  return { kinds: events.map((event) => event.type), texts: texts.map((message) => message.content), events, result };
}

const framesOf = async (response) => (await response.text()).split("\n\n").filter((frame) => frame.startsWith("id: "));
// A connection that breaks after `count` frames, and continues after the last one.
const cutAfter = (count) => async (url, init) => {
  const first = (await framesOf(await fetch(url, init))).slice(0, count);
  const last = first.at(-1).split("\n")[0].slice("id: ".length);
  const again = await fetch(url, { ...init, headers: { ...init.headers, "last-event-id": last } });
  const frames = [...first, ...(await framesOf(again))];
  return new Response(frames.map((frame) => `${frame}\n\n`).join(""), { headers: again.headers });
};

const talk = await run(agentOf("t-talk"), { runId: "r-talk" });
const cuts = new Set();
for (let count = 1; count < talk.events.length; count++) {
  const cut = await run(agentOf("t-talk", cutAfter(count)), { runId: "r-talk" });
  cuts.add(JSON.stringify(cut.events) === JSON.stringify(talk.events));
}

const asking = agentOf("t-ask");
const paused = await run(asking, { runId: "r-ask" });
const pending = asking.pendingInterrupts;
const resume = [{ interruptId: pending[0].id, status: "resolved", payload: { action_id: "book", values: { room: "a" } } }];
const answered = await run(asking, { runId: "r-answer", resume });

async function refused(path) {
  try {
    await run(agentOf("t", undefined, path), { runId: "r" });
  } catch (error) {
    return [error.status, error.payload.type];
  }
}

process.stdout.write(JSON.stringify({
  talk: { kinds: talk.kinds, texts: talk.texts, state: talk.events.at(-1).outcome },
  cuts: [...cuts],
  paused: paused.kinds.at(-1),
  interrupt: { message: pending[0].message, actions: pending[0].responseSchema.properties.action_id.enum },
  answered: { kinds: answered.kinds, texts: answered.texts, outcome: answered.events.at(-1).outcome },
  refused: await refused("/faces/ag-ui/absent"),
  warnings,
}));
