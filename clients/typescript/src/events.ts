/** Events of a run: what runners send as results, and what clients receive. */

import type { Json, Message, MessageChunk, Principal, RunOutcome, StateScope } from "./types.js";

/** Data of `message.delta`. */
export interface MessageDeltaPayload {
  chunk: MessageChunk;
}

/** Data of `message.completed`: a complete message, which replaces the deltas before it. */
export interface MessageCompletedPayload {
  message: Message;
  file_ids?: string[];
}

/** Data of `tool.call.started`, for display. The gateway does not require these fields of a runner. */
export interface ToolCallStartedPayload {
  tool_call_id?: string;
  tool_name?: string;
  parameters?: Json;
}

/** Data of `tool.call.completed`, for display. A failed call has an `error`. */
export interface ToolCallCompletedPayload {
  tool_call_id?: string;
  tool_name?: string;
  result?: Json | null;
  error?: string | null;
}

/** Data of `artifact.created`: `download` reads the file. */
export interface ArtifactCreatedPayload {
  artifact_id?: string;
}

/** Data of `state.updated`. */
export interface StateUpdatedPayload {
  scope: StateScope;
  key: string;
  value: unknown;
}

/** Data of `action.requested`: for a question, `payload` is an `InteractionRequest`. */
export interface ActionRequestedPayload {
  action: string;
  target?: unknown;
  payload?: unknown;
  /** Of a platform action: a repeated request with the same key opens no second action. */
  idempotency_key?: string | null;
  /** Of a platform action: seconds in which a program must claim it. */
  timeout_seconds?: number | null;
}

/** Data of `processor.log`, a line for developers. `level` is `debug`, `info`, `warning` or `error`. */
export interface ProcessorLogPayload {
  text: string;
  level?: string | null;
}

/** Data of `run.completed`. Without an `outcome` it is `ok`. */
export interface RunCompletedPayload {
  finish_reason?: string;
  message?: Message | null;
  outcome?: RunOutcome | null;
}

/** Data of `run.failed`: the text of the failure is in `message` or `error`. */
export interface RunFailedPayload {
  code?: string;
  message?: string | null;
  error?: string | null;
  retryable?: boolean;
}

/**
 * Data of `run.restarted`: the runner was lost, and the attempt `attempt` begins. The events between `after` and this one
 * are superseded; 0: all earlier ones. A delta with `all_content` follows, if the text of the open message changes by that.
 */
export interface RunRestartedPayload {
  attempt: number;
  code: string;
  from: "start" | "checkpoint";
  after: number;
}

/**
 * Data of `run.amended`: a person allowed calls of a tool that the run was not granted. `arguments` has rules by JSON
 * pointer; without it, exactly the call of the question is allowed. Without `count`, any number of calls is. `expires_at`
 * is in epoch seconds.
 */
export interface RunAmendedPayload {
  approval_id: string;
  interaction_id?: string | null;
  tool: string;
  arguments?: Json | null;
  count?: number | null;
  expires_at: number;
  allowed_by: Principal;
}

/** Members of all events. `sequence` counts from 1 without gaps, `created_at` is in epoch seconds. */
interface EventOf<Type extends string, Data> {
  type: Type;
  data: Data;
  run_id: string;
  sequence: number;
  created_at: number;
  source: string;
  usage?: Json | null;
  metadata?: Json;
}

/** Shape of `data` for each `type` of a result. */
export interface EventData {
  "message.delta": MessageDeltaPayload;
  "message.completed": MessageCompletedPayload;
  "tool.call.started": ToolCallStartedPayload;
  "tool.call.completed": ToolCallCompletedPayload;
  "artifact.created": ArtifactCreatedPayload;
  "state.updated": StateUpdatedPayload;
  "action.requested": ActionRequestedPayload;
  "processor.log": ProcessorLogPayload;
  "run.completed": RunCompletedPayload;
  "run.failed": RunFailedPayload;
}

/** Type of an event. */
export type EventType = keyof EventData;

/** Event of a run. A comparison of `type` narrows `data`. Later versions may send further types: ignore them. */
export type RunEvent =
  | { [Type in EventType]: EventOf<Type, EventData[Type]> }[EventType]
  | EventOf<"run.restarted", RunRestartedPayload>
  | EventOf<"run.amended", RunAmendedPayload>;

/** True for the two types that end a run. */
export function isTerminal(type: string): boolean {
  return type === "run.completed" || type === "run.failed";
}
