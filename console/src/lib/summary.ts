/** One line for an event of a ledger. */

import type { RunEvent } from "../api/client";
import { textOf } from "./answer";

const MAX_LENGTH = 300;

export function summaryOf(event: RunEvent): string {
  const text = plain(event).replace(/\s+/g, " ").trim();
  return text.length > MAX_LENGTH ? `${text.slice(0, MAX_LENGTH)}…` : text;
}

function plain(event: RunEvent): string {
  switch (event.type) {
    case "message.delta":
      return event.data.chunk.all_content ?? textOf(event.data.chunk.content);
    case "message.completed":
      return textOf(event.data.message.content);
    case "tool.call.started":
      return `${event.data.tool_name ?? ""} ${JSON.stringify(event.data.parameters ?? {})}`;
    case "tool.call.completed":
      return `${event.data.tool_name ?? ""} ${event.data.error ?? JSON.stringify(event.data.result ?? {})}`;
    case "processor.log":
      return `${event.data.level ?? ""} ${event.data.text}`;
    case "run.failed":
      return `${event.data.code ?? ""} ${event.data.message ?? event.data.error ?? ""}`;
    case "run.completed":
      return event.data.outcome ?? event.data.finish_reason ?? "";
    case "artifact.created":
      return event.data.artifact_id ?? "";
    case "state.updated":
      return `${event.data.scope} ${event.data.key}`;
    case "action.requested":
      return event.data.action;
    default:
      // A type of a later version.
      return JSON.stringify((event as { data?: unknown }).data ?? null);
  }
}

/** True if the event reports a failure. */
export function isFailure(event: RunEvent): boolean {
  return event.type === "run.failed" || (event.type === "tool.call.completed" && event.data.error != null);
}

/** True if the event is no fragment of a message. */
export function isStep(event: RunEvent): boolean {
  return event.type !== "message.delta";
}
