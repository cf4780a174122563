/** Queries of the views, with their intervals. */

import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { queryOf, type RunFilters } from "../lib/filters";
import { PAGE } from "../lib/pages";
import { isLive } from "../ui/status";
import { api, dataOf, type Run } from "./client";
import { renewal } from "./feed";

/** Renewal of lists that change. Hidden tabs send no request. */
const LIVE_MS = 1000;
const INBOX_MS = 3000;
const PAGES_MS = 15_000;
const LIST_PAGE = 50;

export interface Paged<Item> {
  items: Item[];
  next_cursor?: string | null;
  has_more: boolean;
}

/** Cursor of the next page, or undefined at the end. */
export function nextCursor(page: Paged<unknown>): string | undefined {
  return page.has_more ? (page.next_cursor ?? undefined) : undefined;
}

function runsPage(filters: RunFilters, cursor: string | undefined, signal: AbortSignal) {
  const query = { ...queryOf(filters), limit: LIST_PAGE, ...(cursor === undefined ? {} : { cursor }) };
  return dataOf(api.GET("/v1/runs", { params: { query }, signal }));
}

export function runsQuery(filters: RunFilters) {
  return infiniteQueryOptions({
    queryKey: ["runs", "pages", filters],
    queryFn: ({ pageParam, signal }) => runsPage(filters, pageParam, signal),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: nextCursor,
    refetchInterval: renewal(PAGES_MS),
  });
}

/** The newest runs, live. */
export function newestRunsQuery(filters: RunFilters) {
  return queryOptions({
    queryKey: ["runs", "newest", filters],
    queryFn: ({ signal }) => runsPage(filters, undefined, signal),
    refetchInterval: renewal(LIVE_MS),
  });
}

export function runQuery(runId: string) {
  return queryOptions({
    queryKey: ["run", runId],
    queryFn: ({ signal }) =>
      dataOf(api.GET("/v1/runs/{run_id}", { params: { path: { run_id: runId } }, signal })),
    refetchInterval: ({ state }) => (state.data === undefined || isLive(state.data.status) ? LIVE_MS : false),
  });
}

/** Renews details of a run while it is live. */
function whileLive(run: Run): number | false {
  return isLive(run.status) ? 2 * LIVE_MS : false;
}

export function usageQuery(run: Run) {
  const path = { run_id: run.run_id };
  return queryOptions({
    queryKey: ["run", run.run_id, "usage", run.status],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/runs/{run_id}/usage", { params: { path }, signal })),
    refetchInterval: whileLive(run),
  });
}

export function auditQuery(run: Run) {
  const path = { run_id: run.run_id };
  return infiniteQueryOptions({
    queryKey: ["run", run.run_id, "audit", run.status],
    queryFn: ({ pageParam, signal }) => {
      const query = { limit: PAGE, ...(pageParam === undefined ? {} : { cursor: pageParam }) };
      return dataOf(api.GET("/v1/runs/{run_id}/audit", { params: { path, query }, signal }));
    },
    initialPageParam: undefined as string | undefined,
    getNextPageParam: nextCursor,
    refetchInterval: whileLive(run),
  });
}

export function authorizationQuery(runId: string) {
  const path = { run_id: runId };
  return queryOptions({
    queryKey: ["run", runId, "authorization"],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/runs/{run_id}/authorization", { params: { path }, signal })),
    staleTime: Number.POSITIVE_INFINITY,
  });
}

export function rejectionsQuery(run: Run) {
  const path = { run_id: run.run_id };
  return infiniteQueryOptions({
    queryKey: ["run", run.run_id, "rejections", run.status],
    queryFn: ({ pageParam, signal }) => {
      const query = { limit: PAGE, ...(pageParam === undefined ? {} : { after: pageParam }) };
      return dataOf(api.GET("/v1/runs/{run_id}/rejections", { params: { path, query }, signal }));
    },
    initialPageParam: undefined as string | undefined,
    getNextPageParam: nextCursor,
  });
}

/** Ledger events `first` to `last`, at most 100. Ledgers only grow, so a page never changes. */
export function eventsQuery(runId: string, first: number, last: number) {
  const params = { path: { run_id: runId }, query: { after: `${first - 1}`, limit: last - first + 1 } };
  return queryOptions({
    queryKey: ["run", runId, "events", first, last],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/runs/{run_id}/events", { params, signal })),
    staleTime: Number.POSITIVE_INFINITY,
  });
}

export function eventQuery(eventId: string) {
  const path = { event_id: eventId };
  return queryOptions({
    queryKey: ["event", eventId],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/events/{event_id}", { params: { path }, signal })),
    staleTime: Number.POSITIVE_INFINITY,
  });
}

export interface InteractionFilters {
  run_id?: string;
  conversation_id?: string;
  bot_id?: string;
  thread_id?: string;
  status?: "open" | "submitted";
  order?: "expiry";
}

export function interactionsQuery(filters: InteractionFilters) {
  return queryOptions({
    queryKey: ["interactions", filters],
    queryFn: ({ signal }) =>
      dataOf(api.GET("/v1/interactions", { params: { query: { ...filters, limit: PAGE } }, signal })),
    refetchInterval: renewal(INBOX_MS),
  });
}

/** Open questions of all conversations, the first to expire at the top. */
export function openQuestionsQuery() {
  return interactionsQuery({ status: "open", order: "expiry" });
}

/** Pauses by operators. */
export function pausesQuery() {
  return queryOptions({
    queryKey: ["pauses"],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/pauses", { signal })),
    refetchInterval: PAGES_MS,
    // A gateway of an older version lacks the route.
    retry: false,
  });
}

export function agentsQuery() {
  return queryOptions({
    queryKey: ["agents", "page"],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/agents", { params: { query: { limit: PAGE } }, signal })),
  });
}
