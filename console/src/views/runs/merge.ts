import type { Run } from "../../api/client";

interface Newest {
  items: Run[];
  has_more: boolean;
}

/**
 * The renewed newest page, and the loaded runs that are older than it. A loaded run in the range of the newest page
 * that it lacks does not match the filter any more. Without a common run there is a gap: the caller loads the pages
 * anew.
 */
export function mergeRuns(newest: Newest | undefined, loaded: Run[]): { runs: Run[]; hasGap: boolean } {
  if (newest === undefined) return { runs: loaded, hasGap: false };
  if (!newest.has_more) return { runs: newest.items, hasGap: false };
  const renewed = new Set(newest.items.map((run) => run.run_id));
  const oldest = newest.items.at(-1)?.created_at ?? Number.POSITIVE_INFINITY;
  const older = loaded.filter((run) => !renewed.has(run.run_id) && run.created_at <= oldest);
  const hasGap = loaded.length > 0 && !loaded.some((run) => renewed.has(run.run_id));
  return { runs: [...newest.items, ...older], hasGap };
}
