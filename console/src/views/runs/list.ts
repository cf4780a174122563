import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect } from "react";
import type { Run } from "../../api/client";
import { newestRunsQuery, runsQuery } from "../../api/queries";
import type { RunFilters } from "../../lib/filters";
import { mergeRuns } from "./merge";

export interface RunList {
  runs: Run[];
  isLoading: boolean;
  error: Error | null;
  isFetching: boolean;
  /** Time of the newest page in epoch milliseconds; 0 before the first. */
  dataUpdatedAt: number;
  hasMore: boolean;
  isLoadingMore: boolean;
  loadMore: () => void;
}

/** The runs that a filter matches: loaded pages, and the newest ones live. */
export function useRunList(filters: RunFilters): RunList {
  const client = useQueryClient();
  const newest = useQuery(newestRunsQuery(filters));
  const pages = useInfiniteQuery(runsQuery(filters));
  const loaded = pages.data?.pages.flatMap((page) => page.items) ?? [];
  const { runs, hasGap } = mergeRuns(newest.data, loaded);
  useEffect(() => {
    if (hasGap) void client.resetQueries({ queryKey: runsQuery(filters).queryKey });
  }, [hasGap, client, filters]);
  return {
    runs,
    isLoading: newest.isPending,
    error: newest.error ?? pages.error,
    isFetching: newest.isFetching,
    dataUpdatedAt: newest.dataUpdatedAt,
    hasMore: pages.hasNextPage,
    isLoadingMore: pages.isFetchingNextPage,
    loadMore: () => void pages.fetchNextPage(),
  };
}
