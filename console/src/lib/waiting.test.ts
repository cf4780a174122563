import { expect, test } from "vitest";
import { answeredQuestion, isAsking } from "./waiting";

test("a completed run with an open question asks", () => {
  expect(isAsking({ status: "completed", status_reason: "waiting_user" })).toBe(true);
  expect(isAsking({ status: "completed", status_reason: "stop" })).toBe(false);
  expect(isAsking({ status: "failed", status_reason: "waiting_user" })).toBe(false);
});

test("finds the question of an answer event", () => {
  expect(answeredQuestion({ event_id: "interaction:01a2" })).toBe("01a2");
  expect(answeredQuestion({ event_id: "01a2" })).toBeNull();
});
