import { infiniteQueryOptions } from "@tanstack/react-query";
import { api, dataOf } from "../../api/client";
import { nextCursor } from "../../api/queries";
import { type ChangeFilters, changesOf } from "../../lib/changes";

/** The feed does not report changes. */
const RENEW_MS = 10_000;
const CHANGES_PAGE = 30;

export function workspaceChangesQuery(filters: ChangeFilters) {
  return infiniteQueryOptions({
    queryKey: ["changes", "pages", filters],
    queryFn: ({ pageParam, signal }) => {
      const query = { ...changesOf(filters), limit: CHANGES_PAGE, cursor: pageParam };
      return dataOf(api.GET("/v1/changes", { params: { query }, signal }));
    },
    initialPageParam: undefined as string | undefined,
    getNextPageParam: nextCursor,
    refetchInterval: RENEW_MS,
  });
}
