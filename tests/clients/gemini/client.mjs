// Google's official client against the gateway's face: reads {"base_url", "token", "model"} and prints what it got.
import { readFileSync } from "node:fs";
import { GoogleGenAI } from "@google/genai";

const { base_url: baseUrl, token, model } = JSON.parse(readFileSync(0, "utf8"));
const client = new GoogleGenAI({ apiKey: token, httpOptions: { baseUrl } });
const parameters = { type: "OBJECT", properties: { city: { type: "STRING" } } };
const config = {
  tools: [{ functionDeclarations: [{ name: "get_weather", description: "d", parameters }] }],
  thinkingConfig: { includeThoughts: true },
};

const completion = await client.models.generateContent({ model, contents: "hello" });
const streamed = [];
for await (const chunk of await client.models.generateContentStream({ model, contents: "hello" })) streamed.push(chunk);
const chat = client.chats.create({ model, config });
const called = [];
for await (const chunk of await chat.sendMessageStream({ message: "the weather" })) called.push(chunk);
const [call] = called.at(-1).functionCalls;
const parts = called.flatMap((chunk) => chunk.candidates[0].content.parts);
const result = { functionResponse: { id: call.id, name: call.name, response: { output: "cold" } } };
const answer = await chat.sendMessage({ message: result });
const counted = await client.models.countTokens({ model, contents: "hello" });

async function refused(model, text) {
  try {
    await client.models.generateContent({ model, contents: text });
  } catch (error) {
    return [error.constructor.name, error.status, JSON.parse(error.message).error.status];
  }
}

async function broken() {
  const texts = [];
  try {
    for await (const chunk of await client.models.generateContentStream({ model, contents: "break" })) {
      texts.push(chunk.text);
    }
  } catch (error) {
    return [texts, String(error.status)];
  }
  return [texts, null];
}

const models = [];
for await (const one of await client.models.list()) models.push(one.name);
const last = streamed.at(-1);
process.stdout.write(JSON.stringify({
  complete: completion.text,
  model: completion.modelVersion,
  pieces: streamed.map((chunk) => chunk.text ?? "").join(""),
  stop: [completion.candidates[0].finishReason, last.candidates[0].finishReason],
  usage: last.usageMetadata.promptTokenCount > 0 && last.usageMetadata.candidatesTokenCount > 0,
  call: [call.name, call.args],
  call_id: call.id,
  reasoning: parts.filter((part) => part.thought).map((part) => part.text).join(""),
  answer: answer.text,
  counted: counted.totalTokens > 0,
  models,
  model_of_id: (await client.models.get({ model })).name,
  refused: [await refused("forbidden", "hi"), await refused(model, "busy")],
  broken: await broken(),
}));
