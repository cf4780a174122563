/** Steps of a run that a reader hides by kind and importance. Failures are never hidden. */

import type { AuditEntry, RunEvent } from "../api/client";
import { record } from "../api/errors";
import { isFailure, isStep } from "./summary";

export type Importance = "all" | "steps" | "failures";

export const EVENT_KINDS = ["messages", "tools", "state", "files", "questions", "logs"] as const;
export const CALL_KINDS = [
  "models",
  "tools",
  "knowledge",
  "history",
  "files",
  "questions",
  "state",
  "reads",
] as const;
export type StepKind = (typeof EVENT_KINDS)[number] | (typeof CALL_KINDS)[number];

export interface StepChoice {
  importance: Importance;
  hidden: StepKind[];
}

/** Reads of state and lists surround each call of an agent: they are hidden until a reader asks for them. */
export const DEFAULT_CHOICE: StepChoice = { importance: "all", hidden: ["reads"] };

const IMPORTANCES: readonly Importance[] = ["all", "steps", "failures"];
const KINDS: readonly StepKind[] = [...EVENT_KINDS, ...CALL_KINDS];

/** A stored choice; the default for an absent or damaged one. */
export function readChoice(text: string | null): StepChoice {
  try {
    const { importance, hidden } = record(JSON.parse(text ?? "null"));
    if (!Array.isArray(hidden)) return DEFAULT_CHOICE;
    return {
      importance: IMPORTANCES.find((each) => each === importance) ?? "all",
      hidden: KINDS.filter((kind, at) => hidden.includes(kind) && KINDS.indexOf(kind) === at),
    };
  } catch {
    return DEFAULT_CHOICE;
  }
}

const EVENTS: [string, StepKind][] = [
  ["message.", "messages"],
  ["tool.", "tools"],
  ["state.", "state"],
  ["artifact.", "files"],
  ["action.", "questions"],
  ["processor.", "logs"],
];

const READS = /^(state_get|state_list|list_|models_list|knowledge_list|get_|context|prompt_get|token|run_)/;
const CALLS: [RegExp, StepKind][] = [
  [READS, "reads"],
  [/^state_/, "state"],
  [/^(history|event)_/, "history"],
  [/^artifact_/, "files"],
  [/^interaction_/, "questions"],
  [/tool/, "tools"],
  [/knowledge/, "knowledge"],
  [/^models_/, "models"],
];

/** Ends of runs, and types of a later gateway, have no kind: they are shown. */
export function isEventShown(event: RunEvent, { importance, hidden }: StepChoice): boolean {
  if (isFailure(event)) return true;
  const kind = EVENTS.find(([prefix]) => event.type.startsWith(prefix))?.[1];
  if (kind !== undefined && hidden.includes(kind)) return false;
  return importance === "all" || (importance === "steps" && isStep(event));
}

/** True if all events of a ledger are shown. */
export function showsAllEvents({ importance, hidden }: StepChoice): boolean {
  return importance === "all" && !EVENT_KINDS.some((kind) => hidden.includes(kind));
}

export function isCallShown(call: AuditEntry, { hidden }: StepChoice): boolean {
  const hasFailed = call.decision !== "allow" || (call.outcome != null && call.outcome !== "ok");
  const kind = CALLS.find(([pattern]) => pattern.test(call.action))?.[1];
  return hasFailed || kind === undefined || !hidden.includes(kind);
}
