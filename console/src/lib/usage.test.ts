import { expect, test } from "vitest";
import type { Schema } from "../api/client";
import {
  byDay,
  dateOf,
  periodOf,
  plotted,
  readUsage,
  refusingBudget,
  runsOf,
  spenders,
  stacked,
} from "./usage";

const DAY = 86_400;
const NOW = Date.parse("2026-11-29T20:00:00Z") / 1000;

function used(cost: number): Schema<"UsedByRuns"> {
  const tokens = { input: 1, cache_read: 2, cache_write_5m: 0, cache_write_1h: 0, output: 3, reasoning: 0 };
  return { runs: 1, calls: 1, prompt_tokens: 3, completion_tokens: 3, tokens, cost, seconds: 1 };
}

function report(costs: (readonly [string | null, number[]])[]): Schema<"UsageReport"> {
  const groups = costs.map(([id, days]) => ({
    id,
    total: used(0),
    days: days.map((cost, at) => ({ day: at * DAY, ...used(cost) })),
  }));
  return { from: 0, to: 3 * DAY, group_by: "model", total: used(0), groups };
}

test("addresses are read without malformed parameters", () => {
  const search = { days: "7", from: "2026-11-01", to: "2026-13-01", by: "model", measure: "x", other: "1" };
  expect(readUsage(search)).toEqual({ days: "7", from: "2026-11-01", by: "model" });
  expect(readUsage({ days: "8", by: "runner" })).toEqual({});
});

test("periods are full days in UTC", () => {
  const dates = (search: object) => {
    const { from, to } = periodOf(readUsage({ ...search }), NOW);
    return [dateOf(from), dateOf(to)];
  };
  expect(dates({})).toEqual(["2026-10-31", "2026-11-30"]);
  expect(dates({ days: "7" })).toEqual(["2026-11-23", "2026-11-30"]);
  expect(dates({ from: "2026-11-01", to: "2026-11-02" })).toEqual(["2026-11-01", "2026-11-03"]);
  expect(dates({ to: "2026-11-10", days: "7" })).toEqual(["2026-11-04", "2026-11-11"]);
});

test("series have all days and join further groups", () => {
  const groups = report([
    ["a", [1, 0, 4]],
    ["b", [2]],
    ["c", [3]],
    [null, [5, 6]],
  ]);
  const { days, series } = plotted(groups, "cost", 2);
  expect(days).toEqual([0, DAY, 2 * DAY]);
  expect(series).toEqual([
    { id: "a", values: [1, 0, 4] },
    { id: "b", values: [2, 0, 0] },
    { id: null, values: [8, 6, 0] },
  ]);
  expect(stacked(series)).toEqual([
    [11, 6, 4],
    [10, 6, 0],
    [8, 6, 0],
  ]);
  expect(plotted(report([["a", [1]]]), "tokens", 2).series).toEqual([{ id: "a", values: [6, 0, 0] }]);
});

test("days sum all groups, the newest first", () => {
  const days = byDay(
    report([
      ["a", [1, 2]],
      ["b", [4]],
    ]),
  );
  expect(days.map(({ day, used }) => [day / DAY, used.cost, used.tokens.cache_read])).toEqual([
    [1, 2, 2],
    [0, 5, 4],
  ]);
});

test("budgets lead to the runs of their window", () => {
  const budget = (scope: string, window: string, resets: string) =>
    ({ scope, window, resets_at: Date.parse(resets) / 1000 }) as Schema<"BudgetView">;
  const after = (date: string) => ({ created_after: `${Date.parse(date) / 1000}` });
  expect(spenders(budget("agent", "day", "2026-11-30T00:00:00Z"), "a")).toEqual({
    ...after("2026-11-29T00:00:00Z"),
    agent_id: "a",
  });
  expect(spenders(budget("endpoint", "hour", "2026-11-29T21:00:00Z"), "e")).toEqual({
    ...after("2026-11-29T20:00:00Z"),
    endpoint_id: "e",
  });
  expect(spenders(budget("workspace", "month", "2027-01-01T00:00:00Z"), "w")).toEqual(
    after("2026-12-01T00:00:00Z"),
  );
  expect(spenders({ scope: "run" } as Schema<"BudgetView">, "r")).toBeUndefined();
  expect(runsOf({ from: 1, to: 2 }, "a")).toEqual({
    created_after: "1",
    created_before: "2",
    agent_id: "a",
  });
});

test("refusals name their budget", () => {
  const message =
    "the model failed: the budget each agent a day has no cost left for this call; it resets at …";
  expect(refusingBudget(message)).toBe("each agent a day");
  expect(refusingBudget("the model failed")).toBeUndefined();
});
