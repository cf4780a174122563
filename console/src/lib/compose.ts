/** Event of a form, as `POST /v1/events` takes it. */

import type { Schema } from "../api/client";

export type EventEnvelope = Schema<"EventEnvelope">;

export interface EventForm {
  eventType: string;
  text: string;
  conversationId: string;
  botId: string;
  threadId: string;
  actorName: string;
}

export const EMPTY_FORM: EventForm = {
  eventType: "message.received",
  text: "",
  conversationId: "",
  botId: "",
  threadId: "",
  actorName: "",
};

/** The inbox answers each kind of question. */
const DELIVERY: Schema<"DeliveryContext"> = {
  surface: "console",
  supports_streaming: true,
  interactions: {
    field_types: ["text", "textarea", "select", "multiselect", "number", "boolean", "file"],
    action_styles: ["default", "primary", "danger"],
  },
};

/** Omits what is empty. */
export function composeEvent(form: EventForm): EventEnvelope {
  const event: EventEnvelope = { event_type: form.eventType.trim(), source: "console", delivery: DELIVERY };
  if (form.conversationId !== "" || form.threadId !== "") {
    event.conversation = {
      ...(form.conversationId === "" ? {} : { conversation_id: form.conversationId }),
      ...(form.threadId === "" ? {} : { thread_id: form.threadId }),
    };
  }
  if (form.botId !== "") event.bot_id = form.botId;
  if (form.actorName !== "") {
    event.actor = { actor_type: "user", actor_id: form.actorName, actor_name: form.actorName };
  }
  if (form.text !== "") event.input = { text: form.text };
  return event;
}

/** The event of a text, or the parser's message. */
export function parseEvent(text: string): { event: EventEnvelope } | { fault: string } {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value !== "object" || value === null || Array.isArray(value))
      return { fault: "not a JSON object" };
    return { event: value as EventEnvelope };
  } catch (error) {
    return { fault: error instanceof Error ? error.message : `${error}` };
  }
}

/** Address parameters of the form for an event that reaches an agent. */
export function tryEventOf(agent: Pick<Schema<"AgentSpec">, "event_types" | "scope">) {
  const type = agent.event_types.find((each) => !each.includes("*"));
  const isUsual = agent.event_types.some((each) => [EMPTY_FORM.eventType, "message.*", "*"].includes(each));
  return {
    event_type: isUsual ? undefined : type,
    conversation_id: agent.scope?.conversation_id ?? undefined,
    bot_id: agent.scope?.bot_id ?? undefined,
  };
}

/** Random idempotency key. `crypto.randomUUID` is absent on pages without TLS. */
export function newKey(): string {
  const random = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
