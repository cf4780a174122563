import { useQuery } from "@tanstack/react-query";
import { type Rights, rightsOf } from "../lib/rights";
import { api, dataOf } from "./client";

/** Rights of the signed-in key; undefined until they are read. */
export function useRights(): Rights | undefined {
  const key = useQuery({
    queryKey: ["own-key"],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/whoami", { signal })),
    staleTime: Number.POSITIVE_INFINITY,
  });
  return key.data === undefined ? undefined : rightsOf(key.data.role);
}
