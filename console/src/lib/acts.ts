/** Reads and acts of the page, as calls that a program can make. */

import type { Interaction } from "../api/client";
import type { EventEnvelope } from "./compose";
import { queryOf, type RunFilters } from "./filters";
import type { ApiCall } from "./snippets";

function runPath(runId: string): string {
  return `/v1/runs/${encodeURIComponent(runId)}`;
}

export function runCall(runId: string): ApiCall {
  return { method: "GET", path: runPath(runId), client: { method: "run", args: [runId] } };
}

export function cancelCall(runId: string): ApiCall {
  return { method: "POST", path: `${runPath(runId)}/cancel`, client: { method: "cancel", args: [runId] } };
}

export function retryCall(runId: string): ApiCall {
  return { method: "POST", path: `${runPath(runId)}/retry`, client: { method: "retry", args: [runId] } };
}

export function eventsCall(runId: string): ApiCall {
  const client = { method: "follow", args: [runId], isList: true };
  return { method: "GET", path: `${runPath(runId)}/events?limit=100`, client };
}

export function runsCall(filters: RunFilters): ApiCall {
  const query = queryOf(filters);
  const { statuses, ...others } = query;
  const fields = { ...(statuses == null ? {} : { statuses: statuses.split(",") }), ...others };
  const words = Object.entries(query).map(([name, value]) => [name, `${value}`]);
  const search = new URLSearchParams(words).toString();
  return {
    method: "GET",
    path: `/v1/runs${search === "" ? "" : `?${search}`}`,
    client: { method: "runs", fields, isList: true },
  };
}

export function postCall(event: EventEnvelope): ApiCall {
  return { method: "POST", path: "/v1/events", body: event, client: { method: "post_event", args: [event] } };
}

/** The clients have no method for it. */
export function dryRunCall(event: EventEnvelope): ApiCall {
  return { method: "POST", path: "/v1/agents/dry-run", body: event };
}

export function answerCall(
  question: Pick<Interaction, "id" | "request">,
  actionId: string | null,
  values: Record<string, unknown>,
): ApiCall {
  return {
    method: "POST",
    path: `/v1/interactions/${encodeURIComponent(question.id)}/submit`,
    body: {
      interaction_id: question.request.interaction_id,
      ...(actionId === null ? {} : { action_id: actionId }),
      values,
    },
    client: { method: "answer", args: [actionId ?? undefined, values], interaction: question.id },
  };
}
