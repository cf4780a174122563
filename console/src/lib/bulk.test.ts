import { expect, test } from "vitest";
import { bulkKind } from "./bulk";

test("an act must fit each status of the filter", () => {
  expect(bulkKind({ statuses: "running,queued" })).toBe("cancel");
  expect(bulkKind({ statuses: "failed,timeout" })).toBe("retry");
  expect(bulkKind({ statuses: "failed,running" })).toBeNull();
  expect(bulkKind({ statuses: "completed" })).toBeNull();
  expect(bulkKind({ agent_id: "a" })).toBeNull();
});
