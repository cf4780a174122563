/** Runs of one event of which each repeats the one before. */

import type { Run } from "../api/client";

/** Runs of a chain that are read in each direction, with one request each. */
export const MAX_CHAIN = 16;

type ReadRun = (runId: string) => Promise<Run>;

/** The runs before and after `run` and the run itself, oldest first. Ends at a run that cannot be read. */
export async function readChain(run: Run, read: ReadRun): Promise<Run[]> {
  const earlier = await follow(run, (one) => one.retry_of, read);
  const later = await follow(run, (one) => one.retried_as, read);
  return [...earlier.toReversed(), run, ...later];
}

async function follow(
  run: Run,
  next: (run: Run) => string | null | undefined,
  read: ReadRun,
): Promise<Run[]> {
  const found: Run[] = [];
  let id = next(run);
  while (id && found.length < MAX_CHAIN) {
    // A key that is restricted to agents may not read a run of another agent.
    const one = await read(id).catch(() => null);
    if (one === null) break;
    found.push(one);
    id = next(one);
  }
  return found;
}
