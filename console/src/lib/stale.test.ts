import { expect, test } from "vitest";
import { staleKeys } from "./stale";

test("a change of a run renews the run and the lists", () => {
  expect(staleKeys({ type: "run", run_id: "r" })).toEqual([["runs"], ["conversations"], ["run", "r"]]);
});

test("a reset renews the lists", () => {
  expect(staleKeys({ type: "reset" })).toContainEqual(["interactions"]);
  expect(staleKeys({ type: "interaction", run_id: "r" })).toEqual([["interactions"], ["approvals"]]);
  expect(staleKeys({ type: "action", run_id: "r" })).toEqual([["actions"]]);
});
