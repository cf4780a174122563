// The official OpenAI client against the gateway's face: reads {"base_url", "token"} and prints what it got.
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const given = JSON.parse(readFileSync(0, "utf8"));
const client = new OpenAI({ baseURL: given.base_url, apiKey: given.token, maxRetries: 0 });
const user = [{ role: "user", content: "hello" }];
const tools = [
  { type: "function", function: { name: "get_weather", description: "d", parameters: { type: "object" } } },
];

const completion = await client.chat.completions.create({ model: "talker", messages: user });
const stream = await client.chat.completions.create({
  model: "talker", messages: user, stream: true, stream_options: { include_usage: true },
});
let pieces = "";
let usage = null;
for await (const chunk of stream) {
  usage = chunk.usage ?? usage;
  for (const choice of chunk.choices) pieces += choice.delta.content ?? "";
}
const asking = [{ role: "user", content: "the weather" }];
const runner = client.chat.completions.stream({ model: "talker", messages: asking, tools });
const called = (await runner.finalChatCompletion()).choices[0];
const call = called.message.tool_calls[0];
const answer = await client.chat.completions.create({
  model: "talker", tools,
  messages: [...asking, { role: "assistant", content: null, tool_calls: [call] },
    { role: "tool", tool_call_id: call.id, content: "cold" }],
});
const vectors = await client.embeddings.create({ model: "talker", input: ["one", "two"] });

async function refused(model, text) {
  try {
    await client.chat.completions.create({ model, messages: [{ role: "user", content: text }] });
  } catch (error) {
    return [error.constructor.name, error.status, error.code];
  }
}

const models = [];
for await (const model of client.models.list()) models.push(model.id);
process.stdout.write(JSON.stringify({
  whole: completion.choices[0].message.content,
  model: completion.model,
  pieces,
  usage: usage.total_tokens > 0,
  call: [call.function.name, JSON.parse(call.function.arguments), called.finish_reason],
  told: answer.choices[0].message.content,
  dimensions: vectors.data.map((item) => item.embedding.length),
  models,
  model_of_id: (await client.models.retrieve("talker")).id,
  refused: [await refused("forbidden", "hi"), await refused("talker", "busy")],
}));
