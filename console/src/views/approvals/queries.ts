import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { api, dataOf } from "../../api/client";
import { renewal } from "../../api/feed";
import { nextCursor } from "../../api/queries";
import { PAGE } from "../../lib/pages";

/** The feed reports answers, but not the use of an approval. */
const RENEW_MS = 5000;

export function approvalsQuery() {
  return infiniteQueryOptions({
    queryKey: ["approvals"],
    queryFn: ({ pageParam, signal }) => {
      const query = { limit: PAGE, cursor: pageParam };
      return dataOf(api.GET("/v1/approvals", { params: { query }, signal }));
    },
    initialPageParam: undefined as string | undefined,
    getNextPageParam: nextCursor,
    refetchInterval: renewal(RENEW_MS),
  });
}

export function approvalQuery(approvalId: string) {
  const path = { approval_id: approvalId };
  return queryOptions({
    queryKey: ["approvals", "one", approvalId],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/approvals/{approval_id}", { params: { path }, signal })),
    refetchInterval: RENEW_MS,
  });
}

export function questionQuery(interaction: string) {
  const path = { interaction };
  return queryOptions({
    queryKey: ["interactions", "one", interaction],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/interactions/{interaction}", { params: { path }, signal })),
  });
}
