/** Schedules, as the views show and change them. */

import type { Schema } from "../api/client";
import type { TextKey } from "../i18n";
import type { Shown } from "./webhooks";

type Schedule = Schema<"Schedule">;
type ScheduleSpec = Schema<"ScheduleSpec">;
type Template = Schema<"EventTemplate">;

export const OCCURRENCE_STATES: Record<Schema<"OccurrenceStatus">, Shown> = {
  pending: { tone: "wait", text: "deliveries.pending" },
  triggered: { tone: "good", text: "occurrences.triggered" },
  skipped: { tone: "off", text: "occurrences.skipped" },
  failed: { tone: "bad", text: "status.failed" },
  cancelled: { tone: "off", text: "status.cancelled" },
};

export const MISFIRES = {
  skip: "schedules.misfire.skip",
  once: "schedules.misfire.once",
  all: "schedules.misfire.all",
} as const satisfies Record<Schema<"Misfire">, TextKey>;

export function scheduleState({ enabled, paused_at, next_due }: Schedule): Shown {
  if (!enabled) return { tone: "off", text: "agents.disabled" };
  if (paused_at != null) return { tone: "wait", text: "schedules.paused" };
  if (next_due.length === 0) return { tone: "off", text: "schedules.over" };
  return { tone: "good", text: "agents.enabled" };
}

/** Its cron expression with the time zone, or its interval. */
export function ruleOf({ cron, every, timezone }: ScheduleSpec): string {
  return cron == null ? (every ?? "") : `${cron} ${timezone ?? "UTC"}`;
}

/** The editable part of a schedule. */
export function scheduleSpec(schedule: Schedule): ScheduleSpec {
  const { id, origin, agent_id, paused_at, next_due, version, created_at, updated_at, updated_by, ...spec } =
    schedule;
  return spec;
}

/** The event with another text. Its other members stay; one without members is none. */
export function withText(event: Template | null | undefined, text: string): Template | undefined {
  const { input, ...others } = event ?? {};
  const { text: _, ...rest } = input ?? {};
  return given({ ...others, input: given(text === "" ? rest : { ...rest, text }) });
}

/** The event in another conversation; an empty id is none. */
export function withConversation(event: Template | null | undefined, id: string): Template | undefined {
  const { conversation, ...others } = event ?? {};
  const { conversation_id: _, ...rest } = conversation ?? {};
  return given({ ...others, conversation: given(id === "" ? rest : { ...rest, conversation_id: id }) });
}

/** The object without absent members; undefined without members. */
function given<Value extends object>(value: Value): Value | undefined {
  const members = Object.entries(value).filter(([, member]) => member !== undefined);
  return members.length === 0 ? undefined : (Object.fromEntries(members) as Value);
}
