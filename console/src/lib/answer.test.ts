import { expect, test } from "vitest";
import type { RunEvent } from "../api/client";
import { foldAnswer, NO_ANSWER, textOf } from "./answer";

let sequence = 0;

function event(type: string, data: unknown): RunEvent {
  sequence += 1;
  return { run_id: "r", sequence, type, data, created_at: 0, source: "runner" } as RunEvent;
}

const delta = (chunk: object) => event("message.delta", { chunk: { role: "assistant", ...chunk } });

function texts(events: RunEvent[]): string[] {
  return foldAnswer(NO_ANSWER, events).parts.map((part) =>
    part.kind === "message" ? `${part.text}${part.isDone ? "." : ""}` : `${part.name}:${part.state}`,
  );
}

test("joins increments and takes complete texts", () => {
  expect(texts([delta({ content: "Hel" }), delta({ content: "lo" })])).toEqual(["Hello"]);
  expect(texts([delta({ content: "Hel" }), delta({ all_content: "Hello you" })])).toEqual(["Hello you"]);
});

test("the completed message replaces its increments", () => {
  const message = { role: "assistant", content: [{ type: "text", text: "Hello" }, { type: "file_url" }] };
  expect(texts([delta({ content: "Hel" }), event("message.completed", { message })])).toEqual([
    "Hello[file_url].",
  ]);
});

test("the terminal event does not repeat a message", () => {
  const message = { role: "assistant", content: "Hi" };
  const events = [event("message.completed", { message }), event("run.completed", { message })];
  expect(texts(events)).toEqual(["Hi."]);
  expect(foldAnswer(NO_ANSWER, events).isEnded).toBe(true);
});

test("messages and tools are in order", () => {
  const found = texts([
    delta({ content: "One", resp_message_id: "a" }),
    event("message.completed", { message: { role: "assistant", content: "One", resp_message_id: "a" } }),
    event("tool.call.started", { tool_call_id: "t", tool_name: "search" }),
    event("tool.call.completed", { tool_call_id: "t", tool_name: "search", error: "no" }),
    delta({ content: "Two", resp_message_id: "b" }),
  ]);
  expect(found).toEqual(["One.", "search:failed", "Two"]);
});

test("markup stays text", () => {
  expect(textOf("<img src=x onerror=alert(1)>")).toBe("<img src=x onerror=alert(1)>");
});

test("a failed run ends without an answer", () => {
  const failed = foldAnswer(NO_ANSWER, [event("run.failed", { code: "runner.no_model" })]);
  expect(failed).toMatchObject({ isEnded: true, hasFailed: true, parts: [] });
  expect(foldAnswer(NO_ANSWER, [event("run.completed", {})]).hasFailed).toBeUndefined();
});
