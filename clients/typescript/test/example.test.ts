// The assistant of examples/typescript/assistant with the real gateway.
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { Client, message } from "../src/index.js";
import { NEEDS_GATEWAY, startGateway, startProgram } from "./gateway_process.js";

const PROGRAM = fileURLToPath(
  new URL("../../../../examples/typescript/assistant/dist/assistant_runner.js", import.meta.url),
);
const missing = "examples/typescript/assistant is not built: `npm ci && npm run build` there";
if (!existsSync(PROGRAM) && (process.env.RUNNEL_TEST_REQUIRE ?? "").includes("clients")) throw new Error(missing);
const options = existsSync(PROGRAM) ? NEEDS_GATEWAY : { skip: missing };

test("assistant answers with model, tool and memory", options, async () => {
  const runner = await startProgram(PROGRAM);
  const gateway = await startGateway(runner.url, ["assistant"], "plugin:runnel/assistant-typescript/default");
  try {
    const client = new Client({ url: gateway.url, apiKey: gateway.key });
    const types: string[] = [];
    let answer: unknown;
    for await (const event of client.stream({ ...message("what time is it?", "c-1"), source: "assistant" })) {
      if (event.type !== "message.delta") types.push(event.type);
      if (event.type === "message.completed") answer = event.data.message;
    }
    assert.deepEqual(types, ["tool.call.started", "tool.call.completed", "message.completed", "run.completed"]);
    assert.match(JSON.stringify(answer), /^\{"role":"assistant","content":"Clock: /);
  } finally {
    await gateway.stop();
    await runner.stop();
  }
});
