// The official OpenAI client against the Responses face: reads {"base_url", "token", "model"} and prints what it got.
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const given = JSON.parse(readFileSync(0, "utf8"));
const client = new OpenAI({ baseURL: given.base_url, apiKey: given.token, maxRetries: 0 });
const model = given.model;
const weather = {
  type: "function", name: "get_weather", description: "d", strict: false,
  parameters: { type: "object", properties: { city: { type: "string" } } },
};
const patch = { type: "custom", name: "apply_patch", description: "d" };

const completion = await client.responses.create({ model, instructions: "be kind", input: "hello", store: false });
const types = [];
let pieces = "";
let last = null;
for await (const event of await client.responses.create({ model, input: "hello", stream: true })) {
  types.push(event.type);
  if (event.type === "response.output_text.delta") pieces += event.delta;
  last = event;
}
const asking = [{ role: "user", content: "the weather" }];
const called = await client.responses.stream({ model, input: asking, tools: [weather] }).finalResponse();
const call = called.output.find((item) => item.type === "function_call");
const output = called.output.map(({ parsed_arguments, ...item }) => item);
const answer = await client.responses.create({
  model, tools: [weather],
  input: [...asking, ...output, { type: "function_call_output", call_id: call.call_id, output: "cold" }],
});
const patched = await client.responses.create({ model, input: [{ role: "user", content: "a patch" }], tools: [patch] });
const custom = patched.output.find((item) => item.type === "custom_tool_call");
const counted = await client.responses.inputTokens.count({ model, input: "hello" });

async function refused(request) {
  try {
    await client.responses.create(request);
  } catch (error) {
    return [error.constructor.name, error.status, error.code, error.param];
  }
}

const text = (response) =>
  response.output.flatMap((item) => item.content ?? []).filter((part) => part.type === "output_text")
    .map((part) => part.text).join("");
process.stdout.write(JSON.stringify({
  whole: completion.output_text,
  model: completion.model,
  stored: completion.store,
  types,
  pieces,
  last: text(last.response),
  usage: last.response.usage.total_tokens > 0,
  call: [call.name, JSON.parse(call.arguments)],
  told: answer.output_text,
  custom: [custom.name, custom.input],
  tokens: counted.input_tokens,
  refused: [
    await refused({ model: "forbidden", input: "hi" }),
    await refused({ model, input: "hi", previous_response_id: "resp_1" }),
    await refused({ model, input: "hi", tools: [{ type: "web_search" }] }),
    await refused({ model, input: "busy" }),
  ],
}));
