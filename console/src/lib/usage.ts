/** Reports of use: their period and groups in the address, their series for a plot, and the runs behind a sum. */

import type { Schema } from "../api/client";
import type { RunFilters } from "./filters";

type Report = Schema<"UsageReport">;
type Used = Schema<"UsedByRuns">;
export type Grouping = NonNullable<Report["group_by"]>;

export const GROUPINGS: Grouping[] = ["agent", "model", "tool", "knowledge_base"];
export const MEASURES = ["cost", "tokens", "calls", "runs"] as const;
export type Measure = (typeof MEASURES)[number];
/** Days of the periods that end today. The API takes at most 92. */
export const PERIODS = [7, 30, 90];
const DEFAULT_DAYS = 30;
const DAY = 86_400;

/** Parameters of the address; absent ones have their default. `from` and `to` are dates (UTC), both inclusive. */
export interface UsageSearch {
  days?: string;
  from?: string;
  to?: string;
  by?: Grouping;
  measure?: Measure;
  agent_id?: string;
}

export interface Period {
  /** Begin of the first day, in epoch seconds. */
  from: number;
  /** End of the last day. */
  to: number;
}

/** Parameters of an address. Others and malformed ones are ignored. */
export function readUsage(search: Record<string, unknown>): UsageSearch {
  const found: UsageSearch = {};
  const { days, from, to, by, measure, agent_id } = search;
  if (PERIODS.some((each) => `${each}` === days)) found.days = `${days}`;
  if (secondsOf(from) !== undefined) found.from = `${from}`;
  if (secondsOf(to) !== undefined) found.to = `${to}`;
  const grouping = GROUPINGS.find((each) => each === by);
  if (grouping !== undefined) found.by = grouping;
  const chosen = MEASURES.find((each) => each === measure);
  if (chosen !== undefined) found.measure = chosen;
  if (typeof agent_id === "string" && agent_id !== "") found.agent_id = agent_id;
  return found;
}

/** Begin of a date `2026-11-29` (UTC) in epoch seconds. */
function secondsOf(date: unknown): number | undefined {
  if (typeof date !== "string" || !/^\d{4}-\d{2}-\d{2}$/.test(date)) return undefined;
  const ms = Date.parse(`${date}T00:00:00Z`);
  return Number.isNaN(ms) ? undefined : ms / 1000;
}

/** Date (UTC) of a time. */
export function dateOf(seconds: number): string {
  return new Date(seconds * 1000).toISOString().slice(0, 10);
}

/** The period of an address: dates if there are any, otherwise days up to today. */
export function periodOf({ days, from, to }: UsageSearch, now: number): Period {
  const last = secondsOf(to) ?? Math.floor(now / DAY) * DAY;
  const length = Number(days ?? DEFAULT_DAYS);
  return { from: secondsOf(from) ?? last - (length - 1) * DAY, to: last + DAY };
}

export function amount(used: Used, measure: Measure): number {
  return measure === "tokens" ? used.prompt_tokens + used.completion_tokens : used[measure];
}

/** Values of all days of a report, 0 for days without calls. */
export interface Series {
  id: string | null;
  values: number[];
}

export interface Plotted {
  /** Begins of the days, in epoch seconds. */
  days: number[];
  series: Series[];
}

/** Series of the first `limit` groups, and one of all others. */
export function plotted(report: Report, measure: Measure, limit: number): Plotted {
  const days: number[] = [];
  for (let day = report.from; day < report.to; day += DAY) days.push(day);
  const others: Series = { id: null, values: days.map(() => 0) };
  const series: Series[] = [];
  for (const group of report.groups) {
    const isOwn = group.id != null && series.length < limit;
    const target = isOwn ? { id: group.id ?? null, values: days.map(() => 0) } : others;
    if (isOwn) series.push(target);
    for (const used of group.days) {
      const at = (used.day - report.from) / DAY;
      target.values[at] = (target.values[at] ?? 0) + amount(used, measure);
    }
  }
  if (series.length < report.groups.length) series.push(others);
  return { days, series };
}

/** Heights of stacked bars: each series with all that follow it. Drawn in order, each covers the foot of the one before. */
export function stacked(series: Series[]): number[][] {
  const heights: number[][] = [];
  for (const { values } of series.toReversed()) {
    const below = heights[0];
    heights.unshift(values.map((value, day) => value + (below?.[day] ?? 0)));
  }
  return heights;
}

/** Sums of a report by day, the newest first. */
export function byDay(report: Report): { day: number; used: Used }[] {
  const sums = new Map<number, Used>();
  for (const used of report.groups.flatMap((group) => group.days)) {
    const sum = sums.get(used.day);
    sums.set(used.day, sum === undefined ? used : plus(sum, used));
  }
  const days = [...sums].map(([day, used]) => ({ day, used }));
  return days.toSorted((a, b) => b.day - a.day);
}

function plus(a: Used, b: Used): Used {
  const tokens = { ...a.tokens };
  for (const key of Object.keys(tokens) as (keyof typeof tokens)[]) tokens[key] += b.tokens[key];
  return {
    runs: a.runs + b.runs,
    calls: a.calls + b.calls,
    prompt_tokens: a.prompt_tokens + b.prompt_tokens,
    completion_tokens: a.completion_tokens + b.completion_tokens,
    tokens,
    cost: a.cost + b.cost,
    seconds: a.seconds + b.seconds,
  };
}

/** Runs that were created within a period. */
export function runsOf({ from, to }: Period, agentId: string | undefined): RunFilters {
  const period = { created_after: `${from}`, created_before: `${to}` };
  return agentId === undefined ? period : { ...period, agent_id: agentId };
}

/** Runs that a subject of a budget has spent on in the current window; undefined for a run. */
export function spenders(budget: Schema<"BudgetView">, subject: string): RunFilters | undefined {
  const since = windowStart(budget.window, budget.resets_at);
  const created: RunFilters = since === undefined ? {} : { created_after: `${since}` };
  switch (budget.scope) {
    case "agent":
      return { ...created, agent_id: subject };
    case "endpoint":
      return { ...created, endpoint_id: subject };
    case "workspace":
      return created;
    default:
      return undefined;
  }
}

/** Begin of the window that ends with a reset, in epoch seconds. */
function windowStart(window: string, resetsAt: number | null | undefined): number | undefined {
  if (resetsAt == null) return undefined;
  if (window === "hour") return resetsAt - 3600;
  if (window === "day") return resetsAt - DAY;
  const end = new Date(resetsAt * 1000);
  return Date.UTC(end.getUTCFullYear(), end.getUTCMonth() - 1, 1) / 1000;
}

/** Fragment of a budget in the view. */
export function budgetAnchor(name: string): string {
  return `budget-${name}`;
}

/** Name of the budget that refused a call, from the gateway's message. */
export function refusingBudget(message: string): string | undefined {
  return /the budget (.+) has no (?:calls|tokens|cost|seconds) left/.exec(message)?.[1];
}
