/** Results that a runner yields. Plain text is short for `delta(text)`. */

import type { EventData, EventType } from "../events.js";
import type { ArtifactMetadata, InteractionRequest, Json, Message, RunOutcome, StateScope } from "../types.js";

interface ResultOf<Type, Data> {
  type: Type;
  data: Data;
  usage?: Json;
}

/** Result of a runner, without the fields that the adapter adds: run id and sequence. */
export type Result = { [Type in EventType]: ResultOf<Type, EventData[Type]> }[EventType];

/** Piece of the answer: yielded text is short for it. */
export function delta(text: string): Result {
  return { type: "message.delta", data: { chunk: { role: "assistant", content: text } } };
}

/** Complete message, an item of the history. It replaces the deltas before it. `fileIds`: at most 100. */
export function message(content: string | Message, fileIds: string[] = []): Result {
  const body = typeof content === "string" ? { role: "assistant", content } : content;
  return { type: "message.completed", data: { message: body, file_ids: fileIds } };
}

/** Shows a tool call to the client. */
export function toolStarted(id: string, name: string, parameters: Json): Result {
  return { type: "tool.call.started", data: { tool_call_id: id, tool_name: name, parameters } };
}

/** Shows the end of a tool call to the client. */
export function toolCompleted(id: string, name: string, end: { result: Json } | { error: string }): Result {
  return { type: "tool.call.completed", data: { tool_call_id: id, tool_name: name, ...end } };
}

/** Stores a value for later runs. `ctx.state.put` does so at once, with a version. */
export function state(key: string, value: unknown, scope: StateScope = "conversation"): Result {
  return { type: "state.updated", data: { scope, key, value } };
}

/** Announces a file that `ctx.files.upload` stored. */
export function file({ artifact_id }: ArtifactMetadata): Result {
  return { type: "artifact.created", data: { artifact_id } };
}

/** Asks a person. With `await: true`, `ctx.interactions.wait` returns the answer. */
export function question(request: InteractionRequest): Result {
  return { type: "action.requested", data: { action: "interaction.requested", payload: request } };
}

/** Log line among the run's events, not delivered to users. The text is cut after 65,536 characters. */
export function log(text: string, level: "debug" | "info" | "warning" | "error" = "info"): Result {
  return { type: "processor.log", data: { text: text.slice(0, 65_536), level } };
}

/** Ends the run. The adapter does so by itself when the function returns. */
export function completed(finishReason = "stop", outcome?: RunOutcome): Result {
  return { type: "run.completed", data: { finish_reason: finishReason, ...(outcome && { outcome }) } };
}

/**
 * Ends the run as failed. Throw `RunFailed` instead where a function is nested. The text is for the client, and cut
 * after 4,000 characters.
 */
export function failed(code: string, text: string, retryable = false): Result {
  return { type: "run.failed", data: { code, message: text.slice(0, 4000), retryable } };
}
