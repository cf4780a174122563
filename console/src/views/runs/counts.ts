import { queryOptions } from "@tanstack/react-query";
import { api, dataOf } from "../../api/client";
import { renewal } from "../../api/feed";
import { queryOf, type RunFilters } from "../../lib/filters";

const RENEW_MS = 5000;

export function countsQuery(filters: RunFilters) {
  return queryOptions({
    queryKey: ["runs", "counts", filters],
    queryFn: ({ signal }) =>
      dataOf(api.GET("/v1/runs/counts", { params: { query: queryOf(filters) }, signal })),
    refetchInterval: renewal(RENEW_MS),
  });
}
