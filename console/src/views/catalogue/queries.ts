import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { api, dataOf, type Schema } from "../../api/client";
import { nextCursor } from "../../api/queries";

const RENEW_MS = 10_000;
const INDEXING_MS = 1000;

function list<Item>(name: string, read: (signal: AbortSignal) => Promise<{ items: Item[] }>) {
  return queryOptions({
    queryKey: ["catalogue", name],
    queryFn: ({ signal }) => read(signal),
    refetchInterval: RENEW_MS,
  });
}

export const catalogueQueries = {
  models: () => list("models", (signal) => dataOf(api.GET("/v1/models", { signal }))),
  providers: () => list("providers", (signal) => dataOf(api.GET("/v1/model-providers", { signal }))),
  tools: () => list("tools", (signal) => dataOf(api.GET("/v1/tools", { signal }))),
  mcp: () => list("mcp", (signal) => dataOf(api.GET("/v1/mcp-servers", { signal }))),
  knowledge: () => list("knowledge", (signal) => dataOf(api.GET("/v1/knowledge-bases", { signal }))),
  skills: () => list("skills", (signal) => dataOf(api.GET("/v1/skills", { signal }))),
};

type Document = Schema<"KnowledgeDocument">;

export function documentsQuery(kbId: string) {
  return infiniteQueryOptions({
    queryKey: ["documents", kbId],
    queryFn: ({ pageParam, signal }) => {
      const query = pageParam === undefined ? {} : { cursor: pageParam };
      return dataOf(
        api.GET("/v1/knowledge-bases/{kb_id}/documents", {
          params: { path: { kb_id: kbId }, query },
          signal,
        }),
      );
    },
    initialPageParam: undefined as string | undefined,
    getNextPageParam: nextCursor,
    refetchInterval: ({ state }) => {
      const isIndexing = (document: Document) => document.status === "indexing";
      return state.data?.pages.some((page) => page.items.some(isIndexing)) ? INDEXING_MS : RENEW_MS;
    },
  });
}
