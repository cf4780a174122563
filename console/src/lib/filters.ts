/** Filters of the list of runs, as the address and the API name them. */

import type { paths } from "../api/schema";

export type RunQuery = NonNullable<paths["/v1/runs"]["get"]["parameters"]["query"]>;

/** `number` and `time` are numbers in the API; a time is in epoch seconds. */
export const FILTERS = {
  statuses: "text",
  agent_id: "text",
  text: "text",
  created_after: "time",
  created_before: "time",
  error_code: "text",
  status_reason: "text",
  posted_by: "text",
  min_duration_ms: "number",
  max_duration_ms: "number",
  min_cost: "number",
  max_cost: "number",
  conversation_id: "text",
  bot_id: "text",
  thread_id: "text",
  runner_id: "text",
  endpoint_id: "text",
  parent_run_id: "text",
  idempotency_key: "text",
} as const satisfies { [Name in keyof RunQuery]?: "text" | "number" | "time" };

export type FilterName = keyof typeof FILTERS;
export type RunFilters = { [Name in FilterName]?: string };

export const FILTER_NAMES = Object.keys(FILTERS) as FilterName[];

/** Filters of an address. Other parameters, empty ones and malformed numbers are ignored. */
export function readFilters(search: Record<string, unknown>): RunFilters {
  const found: RunFilters = {};
  for (const name of FILTER_NAMES) {
    const value = search[name];
    if (typeof value !== "string" || value.trim() === "") continue;
    if (FILTERS[name] !== "text" && !/^\d+(\.\d+)?$/.test(value.trim())) continue;
    found[name] = value.trim();
  }
  return found;
}

/** The filters with one changed; an empty value removes it. */
export function withFilter(filters: RunFilters, name: FilterName, value: string): RunFilters {
  return readFilters({ ...filters, [name]: value });
}

/** The filters with other statuses. A choice of today's failures ends with its time. */
export function withStatuses(filters: RunFilters, statuses: string, today: string): RunFilters {
  const { created_after: after, ...others } = filters;
  return withFilter(after === today ? others : filters, "statuses", statuses);
}

/** The failures since a time. Filters other than status and time stay. */
export function failedSince(filters: RunFilters, statuses: string, since: string): RunFilters {
  const { created_before: _, ...others } = filters;
  return { ...others, statuses, created_after: since };
}

export function isFiltered(filters: RunFilters): boolean {
  return FILTER_NAMES.some((name) => filters[name] !== undefined);
}

/** The filters as the API takes them. */
export function queryOf(filters: RunFilters): RunQuery {
  const entries = Object.entries(filters) as [FilterName, string][];
  return Object.fromEntries(
    entries.map(([name, value]) => [name, FILTERS[name] === "text" ? value : Number(value)]),
  );
}

/** Midnight of the local day of a time, in epoch seconds. */
export function startOfDay(seconds: number): number {
  const day = new Date(seconds * 1000);
  return Math.floor(day.setHours(0, 0, 0, 0) / 1000);
}

/** Value of a `datetime-local` control for epoch seconds. */
export function localTime(seconds: string): string {
  const time = new Date(Number(seconds) * 1000);
  const local = new Date(time.getTime() - time.getTimezoneOffset() * 60_000);
  return seconds === "" ? "" : local.toISOString().slice(0, 16);
}

/** Epoch seconds of a `datetime-local` control; empty for an incomplete one. */
export function secondsOf(local: string): string {
  const time = new Date(local).getTime();
  return Number.isNaN(time) ? "" : `${Math.floor(time / 1000)}`;
}
