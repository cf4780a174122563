// The official Anthropic client against the gateway's face: reads {"base_url", "token", "model"} and prints what it got.
import { readFileSync } from "node:fs";
import Anthropic from "@anthropic-ai/sdk";

const { base_url: baseURL, token, model } = JSON.parse(readFileSync(0, "utf8"));
const client = new Anthropic({ baseURL, apiKey: token, maxRetries: 0 });
const byBearer = new Anthropic({ baseURL, apiKey: null, authToken: token, maxRetries: 0 });
const user = [{ role: "user", content: "hello" }];
const tools = [{ name: "get_weather", description: "d", input_schema: { type: "object" } }];
const asking = [{ role: "user", content: "the weather" }];
const textOf = (message) => message.content.filter((block) => block.type === "text").map((block) => block.text).join("");

const completion = await client.messages.create({ model, max_tokens: 64, messages: user });
let pieces = "";
const stream = client.messages.stream({ model, max_tokens: 64, messages: user }).on("text", (text) => (pieces += text));
const streamed = await stream.finalMessage();
const called = await client.messages.stream({ model, max_tokens: 64, messages: asking, tools }).finalMessage();
const call = called.content.find((block) => block.type === "tool_use");
const answer = await client.messages.create({
  model, max_tokens: 64, tools,
  messages: [...asking, { role: "assistant", content: called.content },
    { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "cold" }] }],
});
const counted = await client.messages.countTokens({ model, messages: user, tools });

async function refused(model, text) {
  try {
    await client.messages.create({ model, max_tokens: 64, messages: [{ role: "user", content: text }] });
  } catch (error) {
    return [error.constructor.name, error.status, error.error.error.type];
  }
}

const models = [];
for await (const one of byBearer.models.list()) models.push(one.id);
process.stdout.write(JSON.stringify({
  whole: textOf(completion),
  model: completion.model,
  pieces,
  stop: [completion.stop_reason, streamed.stop_reason, called.stop_reason],
  usage: streamed.usage.output_tokens > 0 && streamed.usage.input_tokens > 0,
  call: [call.name, call.input],
  call_id: call.id,
  told: textOf(answer),
  counted: counted.input_tokens > 0,
  models,
  model_of_id: (await byBearer.models.retrieve(model)).id,
  refused: [await refused("forbidden", "hi"), await refused(model, "busy")],
}));
