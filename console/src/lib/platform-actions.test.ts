import { expect, test } from "vitest";
import { isPending, mayHaveHappened, readActionFilters } from "./platform-actions";

test("filters of an address have known statuses only", () => {
  expect(readActionFilters({ status: "open", agent_id: "a", run_id: "", other: "x" })).toEqual({
    status: "open",
    agent_id: "a",
    run_id: undefined,
  });
  expect(readActionFilters({ status: "<b>" }).status).toBeUndefined();
});

test("actions before their end are pending", () => {
  expect(isPending({ status: "awaiting_approval" })).toBe(true);
  expect(isPending({ status: "claimed" })).toBe(true);
  expect(isPending({ status: "declined" })).toBe(false);
});

test("an expired claim may have happened", () => {
  expect(mayHaveHappened({ status: "expired", claimed_at: 5 })).toBe(true);
  expect(mayHaveHappened({ status: "expired" })).toBe(false);
  expect(mayHaveHappened({ status: "done", claimed_at: 5 })).toBe(false);
});
