import { expect, test } from "vitest";
import { answerCall, cancelCall, postCall, runsCall } from "./acts";
import { curl, python, pythonValue, typescript } from "./snippets";

const ORIGIN = "https://runnel.example";
const ID = "01a0";

test("an act is a command without a key", () => {
  expect(curl(cancelCall(ID), ORIGIN)).toBe(
    [
      "curl -sS 'https://runnel.example/v1/runs/01a0/cancel'",
      "-X POST",
      '-H "Authorization: Bearer $RUNNEL_API_KEY"',
    ].join(" \\\n  "),
  );
});

test("an act is a program with each client", () => {
  const { client } = cancelCall(ID);
  expect(client && python(client, ORIGIN)).toBe(
    'from runnel import Client\n\nwith Client("https://runnel.example") as client:\n    print(client.cancel("01a0"))\n',
  );
  expect(client && typescript(client, ORIGIN)).toBe(
    'import { Client } from "runnel";\n\nconst client = new Client({ url: "https://runnel.example" });\n' +
      'console.log(await client.cancel("01a0"));\n',
  );
});

test("filters are named as each client names them", () => {
  const call = runsCall({ statuses: "failed,timeout", agent_id: "a", min_cost: "0.5" });
  expect(call.path).toBe("/v1/runs?statuses=failed%2Ctimeout&agent_id=a&min_cost=0.5");
  expect(call.client && python(call.client, ORIGIN)).toContain('agent_id="a", min_cost=0.5');
  expect(call.client && typescript(call.client, ORIGIN)).toContain(
    'client.runs({"statuses":["failed","timeout"],"agentId":"a","minCost":0.5})',
  );
});

test("an answer reads its question first", () => {
  const question = { id: "q1", request: { interaction_id: "table", title: "?", fallback_text: "?" } };
  const call = answerCall(question, "book", { note: "it's" });
  expect(call.body).toEqual({ interaction_id: "table", action_id: "book", values: { note: "it's" } });
  const program = call.client ? python(call.client, ORIGIN) : "";
  expect(program).toContain(
    '    question = client.interaction("q1")\n    print(client.answer(question, "book", {',
  );
  expect(call.client && typescript(call.client, ORIGIN)).toContain('client.answer(question, "book", {');
  const open = answerCall(question, null, {});
  expect(open.client && python(open.client, ORIGIN)).toContain("client.answer(question, None, {})");
  expect(open.client && typescript(open.client, ORIGIN)).toContain("client.answer(question, undefined, {})");
});

test("values are literals of Python", () => {
  const value = { a: [true, null], text: 'line\n"quoted" \u2028', left: undefined, none: {} };
  expect(pythonValue(value)).toBe(
    '{\n    "a": [\n        True,\n        None,\n    ],\n    "text": "line\\n\\"quoted\\" \u2028",\n    "none": {},\n}',
  );
});

test("an event is posted with its content", () => {
  const call = postCall({ event_type: "message.received", input: { text: "Hi" } });
  expect(call.client && python(call.client, ORIGIN)).toContain('"event_type": "message.received",');
  expect(curl(call, ORIGIN)).toContain(`-d '{"event_type":"message.received","input":{"text":"Hi"}}'`);
});
