import { expect, test } from "vitest";
import type { RunEvent } from "../api/client";
import { isFailure, isStep, summaryOf } from "./summary";

const event = (type: string, data: unknown) => ({ type, data, sequence: 1 }) as RunEvent;

test("an event of an unknown type is its data", () => {
  expect(summaryOf(event("x.graph", { a: 1 }))).toBe('{"a":1}');
});

test("a summary is one bounded line", () => {
  const message = { role: "assistant", content: `a\n\nb ${"x".repeat(1000)}` };
  const text = summaryOf(event("message.completed", { message }));
  expect(text.startsWith("a b x")).toBe(true);
  expect(text).toHaveLength(301);
});

test("a failed tool call is a failure and a fragment is no step", () => {
  expect(isFailure(event("tool.call.completed", { error: "no" }))).toBe(true);
  expect(isFailure(event("tool.call.completed", { result: {} }))).toBe(false);
  expect(isFailure(event("run.failed", {}))).toBe(true);
  expect(isStep(event("message.delta", {}))).toBe(false);
});
