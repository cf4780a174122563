/** Webhooks and their deliveries, as the views show them. */

import type { Schema } from "../api/client";
import type { TextKey } from "../i18n";

type Webhook = Schema<"Webhook">;
type WebhookSpec = Schema<"WebhookSpec">;
type Delivery = Schema<"WebhookDelivery">;

/** Types of messages that a webhook may choose; the gateway sends `webhook.test` for a test call. */
export const MESSAGE_TYPES = [
  "run.completed",
  "run.failed",
  "run.cancelled",
  "run.waiting",
  "interaction.requested",
  "action.requested",
  "budget.reached",
  "endpoint.unhealthy",
] as const satisfies Schema<"WebhookEventType">[];

/** Tries of a delivery. */
export const MAX_TRIES = 12;

export const DELIVERY_TONES: Record<Schema<"DeliveryStatus">, string> = {
  pending: "wait",
  delivered: "good",
  dead: "bad",
};

export interface Shown {
  tone: string;
  text: TextKey;
}

/** State of a webhook. A reason to act precedes the others. */
export function webhookState({ enabled, disabled_reason, url, circuit }: Webhook): Shown {
  if (!enabled) {
    if (disabled_reason === "gone") return { tone: "bad", text: "webhooks.gone" };
    if (disabled_reason === "configuration") return { tone: "off", text: "webhooks.unconfigured" };
    return { tone: "off", text: "agents.disabled" };
  }
  if (url == null) return { tone: "good", text: "webhooks.feedOnly" };
  if (circuit.retry_at != null) return { tone: "bad", text: "webhooks.circuitOpen" };
  if (circuit.failures > 0) return { tone: "wait", text: "webhooks.failing" };
  return { tone: "good", text: "agents.enabled" };
}

/** The editable part of a webhook, with the names of its agents if they are known. */
export function webhookSpec(webhook: Webhook, agentNames: Map<string, string>): WebhookSpec {
  const { name, url, events, payload, enabled, agents } = webhook;
  return {
    name,
    events,
    payload,
    enabled,
    ...(url == null ? {} : { url }),
    ...(agents == null ? {} : { agents: agents.map((id) => agentNames.get(id) ?? id) }),
  };
}

/** True if the gateway takes the delivery for another one. */
export function isRedeliverable({ status }: Delivery): boolean {
  return status !== "pending";
}

/** Last answer of the receiver, such as `500, connection reset`; empty before the first try. */
export function lastAnswer({ last_status, last_error }: Delivery): string {
  return [last_status, last_error].filter((part) => part != null).join(", ");
}
