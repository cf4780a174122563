import { expect, test } from "vitest";
import type { Schema } from "../api/client";
import { ruleOf, scheduleSpec, scheduleState, withConversation, withText } from "./schedules";

const SCHEDULE: Schema<"Schedule"> = {
  id: "s",
  origin: "api",
  name: "digest",
  agent: "hello",
  cron: "0 2 * * *",
  misfire: "once",
  enabled: true,
  next_due: [5],
  version: 2,
  created_at: 1,
  updated_at: 2,
  updated_by: { kind: "config" },
};

test("a schedule without due times is over unless it is disabled or paused", () => {
  const text = (fields: object) => scheduleState({ ...SCHEDULE, ...fields }).text;
  expect(text({})).toBe("agents.enabled");
  expect(text({ next_due: [] })).toBe("schedules.over");
  expect(text({ next_due: [], paused_at: 1 })).toBe("schedules.paused");
  expect(text({ next_due: [], enabled: false })).toBe("agents.disabled");
});

test("a rule is a cron expression with its zone, or an interval", () => {
  expect(ruleOf(SCHEDULE)).toBe("0 2 * * * UTC");
  expect(ruleOf({ ...SCHEDULE, timezone: "Europe/Berlin" })).toBe("0 2 * * * Europe/Berlin");
  expect(ruleOf({ name: "n", every: "15m" })).toBe("15m");
});

test("the form has what a change sends", () => {
  expect(scheduleSpec(SCHEDULE)).toEqual({
    name: "digest",
    agent: "hello",
    cron: "0 2 * * *",
    misfire: "once",
    enabled: true,
  });
});

test("a change of the text or conversation keeps the other members of the event", () => {
  const event = { bot_id: "b", input: { text: "old" }, conversation: { thread_id: "t" } };
  expect(withText(event, "new")).toEqual({ ...event, input: { text: "new" } });
  expect(withText(event, "")).toEqual({ bot_id: "b", conversation: { thread_id: "t" } });
  expect(withText(withText(undefined, "new"), "")).toBeUndefined();
  expect(withConversation(event, "c")?.conversation).toEqual({ thread_id: "t", conversation_id: "c" });
  expect(withConversation(withConversation(null, "c"), "")).toBeUndefined();
});
