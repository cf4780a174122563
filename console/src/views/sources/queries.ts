import { queryOptions } from "@tanstack/react-query";
import { api, dataOf, type Schema } from "../../api/client";

export type Source = Schema<"Source">;
export type SourceSpec = Schema<"SourceSpec">;

export function sourcesQuery() {
  return queryOptions({
    queryKey: ["sources"],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/sources", { signal })),
  });
}

export function sourceQuery(sourceId: string) {
  const path = { source_id: sourceId };
  return queryOptions({
    queryKey: ["sources", "one", sourceId],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/sources/{source_id}", { params: { path }, signal })),
  });
}
