import { queryOptions } from "@tanstack/react-query";
import { api, dataOf } from "../../api/client";
import { PAGE } from "../../lib/pages";

export const RENEW_MS = 5000;

export function endpointsQuery() {
  return queryOptions({
    queryKey: ["endpoints"],
    queryFn: ({ signal }) =>
      dataOf(api.GET("/v1/runner-endpoints", { params: { query: { limit: PAGE } }, signal })),
    refetchInterval: RENEW_MS,
  });
}
