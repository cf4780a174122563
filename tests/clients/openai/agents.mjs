// The official OpenAI client with agents as models: reads {"base_url", "key"} and prints what it got.
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const given = JSON.parse(readFileSync(0, "utf8"));
const client = new OpenAI({ baseURL: given.base_url, apiKey: given.key, maxRetries: 0 });
const messages = [{ role: "user", content: "a table" }];

const completion = await client.chat.completions.create({ model: "main", messages });
let pieces = "";
let streamedFinish = null;
for await (const chunk of await client.chat.completions.create({ model: "main", messages, stream: true })) {
  for (const choice of chunk.choices) {
    pieces += choice.delta.content ?? "";
    streamedFinish = choice.finish_reason ?? streamedFinish;
  }
}

async function refused(more) {
  try {
    await client.chat.completions.create({ model: "main", messages, ...more });
  } catch (error) {
    return error;
  }
}

const absent = await refused({ model: "absent" });
const tools = await refused({ tools: [{ type: "function", function: { name: "f" } }] });
const models = [];
for await (const model of client.models.list()) models.push(model.id);
process.stdout.write(JSON.stringify({
  text: completion.choices[0].message.content,
  finish: completion.choices[0].finish_reason,
  model: completion.model,
  pieces,
  streamed_finish: streamedFinish,
  models,
  refused: [absent.constructor.name, absent.status, absent.code],
  invalid: [tools.constructor.name, tools.status, tools.param],
}));
