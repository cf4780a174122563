/** Events of a run: what runners send as results, and what clients receive. */

import type { Json, Message, MessageChunk, RunOutcome, StateScope } from "./types.js";

export interface MessageDeltaPayload {
  chunk: MessageChunk;
}

export interface MessageCompletedPayload {
  message: Message;
  file_ids?: string[];
}

/** For display. The gateway does not require these fields of a runner. */
export interface ToolCallStartedPayload {
  tool_call_id?: string;
  tool_name?: string;
  parameters?: Json;
}

/** For display, as above. A failed call has an `error`. */
export interface ToolCallCompletedPayload {
  tool_call_id?: string;
  tool_name?: string;
  result?: Json | null;
  error?: string | null;
}

export interface ArtifactCreatedPayload {
  artifact_id?: string;
}

export interface StateUpdatedPayload {
  scope: StateScope;
  key: string;
  value: unknown;
}

export interface ActionRequestedPayload {
  action: string;
  target?: unknown;
  payload?: unknown;
}

export interface ProcessorLogPayload {
  text: string;
  level?: string | null;
}

export interface RunCompletedPayload {
  finish_reason?: string;
  message?: Message | null;
  outcome?: RunOutcome | null;
}

export interface RunFailedPayload {
  code?: string;
  message?: string | null;
  error?: string | null;
  retryable?: boolean;
}

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

/** Shape of `data` for each `type`. */
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

export type EventType = keyof EventData;

/** An event of a run. A comparison of `type` narrows `data`. A newer gateway may send other types. */
export type RunEvent = { [Type in EventType]: EventOf<Type, EventData[Type]> }[EventType];

/** True for the two types that end a run. */
export function isTerminal(type: string): boolean {
  return type === "run.completed" || type === "run.failed";
}
