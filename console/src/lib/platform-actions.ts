/** Platform actions, as the views show them. */

import type { Schema } from "../api/client";

type Status = Schema<"PlatformActionStatus">;
type Action = Schema<"PlatformAction">;

export const ACTION_TONES: Record<Status, string> = {
  awaiting_approval: "wait",
  open: "wait",
  claimed: "live",
  done: "good",
  failed: "bad",
  declined: "off",
  expired: "bad",
  cancelled: "off",
};

export const ACTION_STATUSES = Object.keys(ACTION_TONES) as Status[];

export interface ActionFilters {
  status?: Status | undefined;
  agent_id?: string | undefined;
  run_id?: string | undefined;
}

/** Filters of an address. Unknown statuses and empty values are ignored. */
export function readActionFilters(search: Record<string, unknown>): ActionFilters {
  const text = (value: unknown) => (typeof value === "string" && value !== "" ? value : undefined);
  return {
    status: ACTION_STATUSES.find((status) => status === search.status),
    agent_id: text(search.agent_id),
    run_id: text(search.run_id),
  };
}

/** True while the status can change. */
export function isPending({ status }: Pick<Action, "status">): boolean {
  return status === "awaiting_approval" || status === "open" || status === "claimed";
}

/** True if the action may have happened although it has no result. */
export function mayHaveHappened({ status, claimed_at }: Pick<Action, "status" | "claimed_at">): boolean {
  return status === "expired" && claimed_at != null;
}
