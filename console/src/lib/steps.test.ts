import { expect, test } from "vitest";
import type { AuditEntry, RunEvent } from "../api/client";
import {
  DEFAULT_CHOICE,
  isCallShown,
  isEventShown,
  readChoice,
  type StepChoice,
  showsAllEvents,
} from "./steps";

const event = (type: string, data: object = {}) => ({ type, data, sequence: 1 }) as RunEvent;
const call = (action: string, fields: Partial<AuditEntry> = {}) =>
  ({ action, decision: "allow", ...fields }) as AuditEntry;
const none: StepChoice = {
  importance: "failures",
  hidden: ["messages", "tools", "state", "files", "questions", "logs", "reads", "models"],
};

test("failures are never hidden", () => {
  expect(isEventShown(event("tool.call.completed", { error: "no" }), none)).toBe(true);
  expect(isEventShown(event("run.failed"), none)).toBe(true);
  expect(isEventShown(event("tool.call.completed", { result: {} }), none)).toBe(false);
  expect(isCallShown(call("state_get", { decision: "deny" }), none)).toBe(true);
  expect(isCallShown(call("models_invoke", { outcome: "timeout" }), none)).toBe(true);
  expect(isCallShown(call("models_invoke", { outcome: "ok" }), none)).toBe(false);
});

test("reads are hidden at first, writes are not", () => {
  const shown = [
    "state_get",
    "list_tools",
    "models_list",
    "state_set",
    "call_tool",
    "child_run_start",
  ].filter((action) => isCallShown(call(action), DEFAULT_CHOICE));
  expect(shown).toEqual(["state_set", "call_tool", "child_run_start"]);
  expect(showsAllEvents(DEFAULT_CHOICE)).toBe(true);
});

test("importance hides fragments, kinds hide types", () => {
  const steps: StepChoice = { importance: "steps", hidden: ["logs"] };
  const shown = ["message.delta", "message.completed", "processor.log", "run.completed", "x.later"].filter(
    (type) => isEventShown(event(type), steps),
  );
  expect(shown).toEqual(["message.completed", "run.completed", "x.later"]);
});

test("a damaged choice is the default", () => {
  expect(readChoice("{")).toEqual(DEFAULT_CHOICE);
  expect(readChoice("7")).toEqual(DEFAULT_CHOICE);
  expect(readChoice(null)).toEqual(DEFAULT_CHOICE);
  expect(readChoice('{"importance":"steps","hidden":["state","no-kind"]}')).toEqual({
    importance: "steps",
    hidden: ["state"],
  });
});
