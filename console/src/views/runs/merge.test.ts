import { expect, test } from "vitest";
import type { Run } from "../../api/client";
import { mergeRuns } from "./merge";

/** Runs whose id is their time. */
const runs = (...times: number[]) => times.map((time) => ({ run_id: `${time}`, created_at: time }) as Run);
const ids = (found: Run[]) => found.map((run) => run.run_id).join(" ");

test("renewed runs precede older loaded ones", () => {
  const { runs: found, hasGap } = mergeRuns({ items: runs(4, 3, 2), has_more: true }, runs(3, 2, 1));
  expect(ids(found)).toBe("4 3 2 1");
  expect(hasGap).toBe(false);
});

test("drops loaded runs that the renewed range lacks", () => {
  expect(ids(mergeRuns({ items: runs(5, 2), has_more: true }, runs(4, 2, 1)).runs)).toBe("5 2 1");
  expect(ids(mergeRuns({ items: [], has_more: false }, runs(4, 2)).runs)).toBe("");
});

test("pages without a common run have a gap", () => {
  expect(mergeRuns({ items: runs(9, 8), has_more: true }, runs(2, 1)).hasGap).toBe(true);
  expect(mergeRuns({ items: runs(9), has_more: true }, []).hasGap).toBe(false);
});
