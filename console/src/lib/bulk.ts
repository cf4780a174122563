/** One act on all runs that a filter matches. */

import type { Run } from "../api/client";
import type { RunFilters } from "./filters";

export type BulkKind = "cancel" | "retry";

const CANCELLED = ["created", "queued", "claimed", "running"];
const RETRIED = ["failed", "cancelled", "timeout"];

/** Runs of one bulk act. A filter that matches more is narrowed first. */
export const MAX_BULK = 1000;

/** The act that fits all statuses of a filter; null if there is none. */
export function bulkKind(filters: RunFilters): BulkKind | null {
  const statuses = filters.statuses?.split(",") ?? [];
  if (statuses.length === 0) return null;
  if (statuses.every((status) => CANCELLED.includes(status))) return "cancel";
  return statuses.every((status) => RETRIED.includes(status)) ? "retry" : null;
}

export interface MatchingPage {
  items: Run[];
  next: string | undefined;
}

export interface Matching {
  runs: Run[];
  /** True if the filter matches more than `MAX_BULK` runs. */
  isCut: boolean;
}

/** All runs of a filter, up to `MAX_BULK`. */
export async function collectRuns(
  read: (cursor: string | undefined) => Promise<MatchingPage>,
): Promise<Matching> {
  const runs: Run[] = [];
  let cursor: string | undefined;
  do {
    const page = await read(cursor);
    runs.push(...page.items);
    cursor = page.next;
  } while (cursor !== undefined && runs.length < MAX_BULK);
  return { runs: runs.slice(0, MAX_BULK), isCut: cursor !== undefined || runs.length > MAX_BULK };
}

export interface Progress {
  done: number;
  failed: { runId: string; reason: string }[];
}

/** Acts on one run after the other. A failure of one does not stop the others; an abort does. */
export async function actOnAll(
  runs: Run[],
  act: (runId: string) => Promise<unknown>,
  report: (progress: Progress) => void,
  signal: AbortSignal,
): Promise<void> {
  const progress: Progress = { done: 0, failed: [] };
  for (const { run_id: runId } of runs) {
    if (signal.aborted) return;
    try {
      await act(runId);
    } catch (error) {
      progress.failed.push({ runId, reason: error instanceof Error ? error.message : `${error}` });
    }
    progress.done += 1;
    report({ done: progress.done, failed: [...progress.failed] });
  }
}

/** Number of runs of each agent, the largest first. */
export function countByAgent(runs: Run[]): [string, number][] {
  const counts = new Map<string, number>();
  for (const run of runs) {
    const agent = run.agent_name ?? run.agent_id;
    counts.set(agent, (counts.get(agent) ?? 0) + 1);
  }
  return [...counts].toSorted((a, b) => b[1] - a[1]);
}
