import { expect, test } from "vitest";
import type { Schema } from "../api/client";
import { isRedeliverable, lastAnswer, webhookSpec, webhookState } from "./webhooks";

const WEBHOOK: Schema<"Webhook"> = {
  id: "w",
  name: "crm",
  origin: "api",
  url: "https://crm.example/",
  events: ["run.failed"],
  payload: "thin",
  enabled: true,
  circuit: { failures: 0 },
  version: 3,
  created_at: 1,
  updated_at: 2,
  updated_by: { kind: "config" },
};
const DELIVERY: Schema<"WebhookDelivery"> = {
  message_id: "m",
  type: "run.failed",
  status: "pending",
  tries: 0,
  created_at: 1,
};

test("a reason to act precedes the other states", () => {
  const text = (fields: Partial<Schema<"Webhook">>) => webhookState({ ...WEBHOOK, ...fields }).text;
  expect(text({})).toBe("agents.enabled");
  expect(text({ url: null })).toBe("webhooks.feedOnly");
  expect(text({ circuit: { failures: 1 } })).toBe("webhooks.failing");
  expect(text({ circuit: { failures: 5, retry_at: 9 } })).toBe("webhooks.circuitOpen");
  expect(text({ enabled: false, circuit: { failures: 5, retry_at: 9 } })).toBe("agents.disabled");
  expect(text({ enabled: false, disabled_reason: "gone" })).toBe("webhooks.gone");
});

test("the form has what a change sends, with the names of agents", () => {
  const names = new Map([["a", "support"]]);
  expect(webhookSpec({ ...WEBHOOK, agents: ["a", "b"] }, names)).toEqual({
    name: "crm",
    url: "https://crm.example/",
    events: ["run.failed"],
    payload: "thin",
    enabled: true,
    agents: ["support", "b"],
  });
  expect(webhookSpec({ ...WEBHOOK, agents: null, url: null }, names)).not.toHaveProperty("agents");
});

test("only ended deliveries are sent again", () => {
  expect(isRedeliverable(DELIVERY)).toBe(false);
  expect(isRedeliverable({ ...DELIVERY, status: "dead" })).toBe(true);
  expect(isRedeliverable({ ...DELIVERY, status: "delivered" })).toBe(true);
});

test("the last answer has the status and the cause", () => {
  expect(lastAnswer(DELIVERY)).toBe("");
  expect(lastAnswer({ ...DELIVERY, last_status: 500, last_error: "no luck" })).toBe("500, no luck");
});
