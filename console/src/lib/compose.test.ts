import { expect, test } from "vitest";
import { composeEvent, EMPTY_FORM, newKey, parseEvent, tryEventOf } from "./compose";

test("omits empty parts of an event", () => {
  const { delivery, ...event } = composeEvent({ ...EMPTY_FORM, text: "Hi" });
  expect(event).toEqual({ event_type: "message.received", source: "console", input: { text: "Hi" } });
  expect(delivery?.surface).toBe("console");
});

test("names conversation, bot and actor", () => {
  const form = { ...EMPTY_FORM, conversationId: "c", threadId: "t", botId: "b", actorName: "Ada" };
  expect(composeEvent(form)).toMatchObject({
    conversation: { conversation_id: "c", thread_id: "t" },
    bot_id: "b",
    actor: { actor_type: "user", actor_name: "Ada" },
  });
});

test("reads objects only", () => {
  expect(parseEvent('{"event_type":"a"}')).toEqual({ event: { event_type: "a" } });
  expect(parseEvent("[]")).toEqual({ fault: "not a JSON object" });
  expect(parseEvent("{")).toHaveProperty("fault");
});

test("idempotency keys differ", () => {
  expect(newKey()).toMatch(/^[0-9a-f]{32}$/);
  expect(newKey()).not.toBe(newKey());
});

test("an agent's event has its scope and one of its types", () => {
  const scope = { kind: "conversation" as const, conversation_id: "planner" };
  expect(tryEventOf({ event_types: ["graph.run"], scope })).toEqual({
    event_type: "graph.run",
    conversation_id: "planner",
    bot_id: undefined,
  });
  expect(tryEventOf({ event_types: ["graph.run", "message.*"] }).event_type).toBeUndefined();
});
