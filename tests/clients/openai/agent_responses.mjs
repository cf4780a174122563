// The official OpenAI client with agents as models: reads {"base_url", "key"}, and resumes a stream after each event.
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const given = JSON.parse(readFileSync(0, "utf8"));
const client = new OpenAI({ baseURL: given.base_url, apiKey: given.key, maxRetries: 0 });
const request = { model: "main", input: "a table" };

async function read(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}
const textOf = (events) =>
  events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta).join("");
const outputText = (response) =>
  response.output.flatMap((item) => item.content ?? []).map((part) => part.text ?? "").join("");

const response = await client.responses.create(request);
const events = await read(await client.responses.create({ ...request, stream: true, background: true }));
const id = events[0].response.id;
const resumed = new Set();
for (const [at, event] of events.entries()) {
  const rest = await client.responses.retrieve(id, { stream: true, starting_after: event.sequence_number });
  resumed.add(textOf([...events.slice(0, at + 1), ...(await read(rest))]));
}
const after = await client.responses.create({ ...request, previous_response_id: id });

async function refused(more) {
  try {
    await client.responses.create({ ...request, ...more });
  } catch (error) {
    return [error.constructor.name, error.status, error.code];
  }
}

process.stdout.write(JSON.stringify({
  text: outputText(response),
  status: response.status,
  kinds: response.output.map((item) => item.type),
  pieces: textOf(events),
  resumed: resumed.size === 1 ? [...resumed][0] : [...resumed],
  read: outputText(await client.responses.retrieve(id)),
  is_continued: after.previous_response_id === id,
  cancelled: (await client.responses.cancel(id)).status,
  refused: await refused({ previous_response_id: "resp_1" }),
}));
