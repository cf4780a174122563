import { infiniteQueryOptions } from "@tanstack/react-query";
import { api, dataOf } from "../../api/client";
import { renewal } from "../../api/feed";
import { nextCursor } from "../../api/queries";
import type { ActionFilters } from "../../lib/platform-actions";

const RENEW_MS = 3000;
const ACTIONS_PAGE = 50;

export function actionsQuery(filters: ActionFilters) {
  return infiniteQueryOptions({
    queryKey: ["actions", filters],
    queryFn: ({ pageParam, signal }) => {
      const query = { ...filters, limit: ACTIONS_PAGE, after: pageParam };
      return dataOf(api.GET("/v1/actions", { params: { query }, signal }));
    },
    initialPageParam: undefined as string | undefined,
    getNextPageParam: nextCursor,
    refetchInterval: renewal(RENEW_MS),
  });
}
