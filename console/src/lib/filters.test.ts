import { expect, test } from "vitest";
import {
  failedSince,
  isFiltered,
  localTime,
  queryOf,
  readFilters,
  secondsOf,
  startOfDay,
  withFilter,
  withStatuses,
} from "./filters";

test("reads the API's filters of an address only", () => {
  const search = { statuses: "failed", tab: "raw", agent_id: " ", limit: "3", runner_id: 7, min_cost: "a" };
  expect(readFilters(search)).toEqual({ statuses: "failed" });
});

test("an empty value removes a filter", () => {
  const filters = { statuses: "failed", agent_id: "a" };
  expect(withFilter(filters, "statuses", "")).toEqual({ agent_id: "a" });
  expect(withFilter(filters, "runner_id", "r")).toEqual({ ...filters, runner_id: "r" });
  expect(isFiltered({})).toBe(false);
});

test("today's failures keep the other filters, and end with their time", () => {
  const filters = { agent_id: "a", statuses: "running", created_before: "5" };
  const today = failedSince(filters, "failed", "100");
  expect(today).toEqual({ agent_id: "a", statuses: "failed", created_after: "100" });
  expect(withStatuses(today, "running", "100")).toEqual({ agent_id: "a", statuses: "running" });
  expect(withStatuses(today, "", "200")).toEqual({ agent_id: "a", created_after: "100" });
});

test("sends numbers as numbers", () => {
  expect(queryOf({ text: "0123", min_cost: "0.5", created_after: "1700000000" })).toEqual({
    text: "0123",
    min_cost: 0.5,
    created_after: 1_700_000_000,
  });
});

test("times survive the control of the browser", () => {
  const minute = `${Math.floor(Date.now() / 60_000) * 60}`;
  expect(secondsOf(localTime(minute))).toBe(minute);
  expect(localTime("")).toBe("");
  expect(secondsOf("")).toBe("");
});

test("a day begins at local midnight", () => {
  const start = startOfDay(Date.now() / 1000);
  expect(new Date(start * 1000).getHours()).toBe(0);
  expect(Date.now() / 1000 - start).toBeLessThan(90_000);
});
