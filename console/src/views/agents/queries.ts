import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { api, dataOf, type Schema } from "../../api/client";
import { nextCursor } from "../../api/queries";
import { PAGE } from "../../lib/pages";

export type Agent = Schema<"Agent">;
export type AgentSpec = Schema<"AgentSpec">;

const CHANGES_PAGE = 20;

export function runnersQuery() {
  return queryOptions({
    queryKey: ["runners"],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/runners", { params: { query: { limit: PAGE } }, signal })),
  });
}

export function agentQuery(agentId: string) {
  const path = { agent_id: agentId };
  return queryOptions({
    queryKey: ["agents", "one", agentId],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/agents/{agent_id}", { params: { path }, signal })),
  });
}

/** Changes of an agent up to this version, newest first. */
export function changesQuery(agentId: string, version: number) {
  return infiniteQueryOptions({
    queryKey: ["changes", "agent", agentId, version],
    queryFn: ({ pageParam, signal }) => {
      const query = { kind: "agent" as const, object_id: agentId, limit: CHANGES_PAGE, cursor: pageParam };
      return dataOf(api.GET("/v1/changes", { params: { query }, signal }));
    },
    initialPageParam: undefined as string | undefined,
    getNextPageParam: nextCursor,
  });
}

/** Skills that runs of an agent have registered. */
export function agentSkillsQuery(agentId: string) {
  const path = { agent_id: agentId };
  return queryOptions({
    queryKey: ["agents", "skills", agentId],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/agents/{agent_id}/skills", { params: { path }, signal })),
  });
}

/** The editable part of an agent. */
export function specOf(agent: Agent): AgentSpec {
  const { id, origin, version, created_at, updated_at, updated_by, refused, ...spec } = agent;
  return spec;
}
