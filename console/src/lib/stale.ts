import type { Schema } from "../api/client";

/** Keys of the queries that a change makes stale. */
export function staleKeys(change: Schema<"FeedEvent">): string[][] {
  switch (change.type) {
    case "run":
      return [["runs"], ["conversations"], ...(change.run_id == null ? [] : [["run", change.run_id]])];
    case "interaction":
      // An answer may create an approval.
      return [["interactions"], ["approvals"]];
    case "action":
      return [["actions"]];
    default:
      return [["runs"], ["conversations"], ["interactions"], ["approvals"], ["actions"]];
  }
}
