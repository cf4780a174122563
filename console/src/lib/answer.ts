/** The answer of a run, folded from the events of its ledger. */

import type { RunEvent, Schema } from "../api/client";

export interface AnswerMessage {
  id: string;
  role: string;
  text: string;
  isDone: boolean;
}

export interface AnswerTool {
  id: string;
  name: string;
  state: "running" | "done" | "failed";
}

export interface Answer {
  /** Messages and tool calls in the order of their first event. */
  parts: (({ kind: "message" } & AnswerMessage) | ({ kind: "tool" } & AnswerTool))[];
  lastSequence: number;
  isEnded: boolean;
  hasFailed?: boolean;
}

export const NO_ANSWER: Answer = { parts: [], lastSequence: 0, isEnded: false };

type Content = Schema<"MessageContent"> | null | undefined;

/** Text of a message: its text parts, and the type of the others in brackets. */
export function textOf(content: Content): string {
  if (content === null || content === undefined) return "";
  if (typeof content === "string") return content;
  return content.map((part) => part.text ?? `[${part.file_name ?? part.type}]`).join("");
}

/** The answer after further events. */
export function foldAnswer(answer: Answer, events: RunEvent[]): Answer {
  const next: Answer = { ...answer, parts: [...answer.parts] };
  for (const event of events) {
    next.lastSequence = event.sequence;
    apply(next, event);
  }
  return next;
}

function apply(answer: Answer, event: RunEvent): void {
  switch (event.type) {
    case "message.delta": {
      const { chunk } = event.data;
      const message = openMessage(answer, chunk.resp_message_id ?? null, chunk.role);
      const text = chunk.all_content ?? message.text + textOf(chunk.content);
      replace(answer, { ...message, text });
      return;
    }
    case "message.completed":
      complete(answer, event.data.message);
      return;
    case "tool.call.started": {
      const { tool_call_id: id = `${event.sequence}`, tool_name: name = "" } = event.data;
      replace(answer, { kind: "tool", id, name, state: "running" });
      return;
    }
    case "tool.call.completed": {
      const { tool_call_id: id = `${event.sequence}`, tool_name: name = "", error } = event.data;
      replace(answer, { kind: "tool", id, name, state: error == null ? "done" : "failed" });
      return;
    }
    case "run.completed":
      if (event.data.message != null) complete(answer, event.data.message);
      answer.isEnded = true;
      return;
    case "run.failed":
      answer.isEnded = true;
      answer.hasFailed = true;
  }
}

function complete(answer: Answer, message: Schema<"Message">): void {
  const text = textOf(message.content);
  const last = answer.parts.findLast((part) => part.kind === "message");
  // The terminal event may repeat the last message.
  if (last?.kind === "message" && last.isDone && last.text === text) return;
  replace(answer, {
    ...openMessage(answer, message.resp_message_id ?? null, message.role),
    text,
    isDone: true,
  });
}

/** The unfinished message with this id; without an id the last unfinished one, or a new message. */
function openMessage(answer: Answer, id: string | null, role: string): { kind: "message" } & AnswerMessage {
  const open = answer.parts.findLast(
    (part) => part.kind === "message" && !part.isDone && (id === null || part.id === id),
  );
  if (open?.kind === "message") return open;
  return { kind: "message", id: id ?? `m${answer.parts.length}`, role, text: "", isDone: false };
}

/** Replaces the unfinished part with this id, or adds it at the end. */
function replace(answer: Answer, part: Answer["parts"][number]): void {
  const isOpen = (other: Answer["parts"][number]) =>
    other.kind === part.kind && other.id === part.id && (other.kind === "tool" || !other.isDone);
  const index = answer.parts.findLastIndex(isOpen);
  if (index < 0) answer.parts.push(part);
  else answer.parts[index] = part;
}
