/** One act on all runs that a filter matches. */

import type { RunFilters } from "./filters";

export type BulkKind = "cancel" | "retry";

const CANCELLED = ["created", "queued", "claimed", "running"];
const RETRIED = ["failed", "cancelled", "timeout"];

/** The act that fits all statuses of a filter; null if there is none. */
export function bulkKind(filters: RunFilters): BulkKind | null {
  const statuses = filters.statuses?.split(",") ?? [];
  if (statuses.length === 0) return null;
  if (statuses.every((status) => CANCELLED.includes(status))) return "cancel";
  return statuses.every((status) => RETRIED.includes(status)) ? "retry" : null;
}
