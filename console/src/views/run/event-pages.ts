import { useQueries } from "@tanstack/react-query";
import type { Run, RunEvent } from "../../api/client";
import { eventsQuery } from "../../api/queries";
import type { EventPage } from "../../lib/pages";

export interface LoadedEvents {
  bySequence: ReadonlyMap<number, RunEvent>;
  isPending: boolean;
  error: Error | null;
}

/** The events of some pages of a ledger. */
export function useEventPages(run: Run, pages: EventPage[]): LoadedEvents {
  const loaded = useQueries({
    queries: pages.map(({ first, last }) => eventsQuery(run.run_id, first, last)),
  });
  const events = loaded.flatMap((page) => page.data?.items ?? []);
  return {
    bySequence: new Map(events.map((event) => [event.sequence, event])),
    isPending: loaded.some((page) => page.isPending),
    error: loaded.find((page) => page.error !== null)?.error ?? null,
  };
}
