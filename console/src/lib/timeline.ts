/** Layout of a run on one axis of milliseconds since its creation. */

import type { AuditEntry, Interaction, Run } from "../api/client";

export type BarKind = "queue" | "work" | "call" | "denied" | "failed" | "wait";

export interface Bar {
  kind: BarKind;
  startMs: number;
  endMs: number;
  note: string;
}

export interface Lane {
  id: string;
  label: string;
  bars: Bar[];
}

export interface Timeline {
  totalMs: number;
  lanes: Lane[];
}

export interface TimelineInput {
  run: Run;
  calls: AuditEntry[];
  interactions: Interaction[];
  /** Epoch seconds. */
  now: number;
}

/** Lanes of one timeline; further resources share the last one. */
const MAX_LANES = 30;

export function layoutTimeline({ run, calls, interactions, now }: TimelineInput): Timeline {
  const since = (seconds: number) => Math.max(0, (seconds - run.created_at) * 1000);
  const begin = run.started_at == null ? null : since(run.started_at);
  const end = endOf(run, begin, since(now));
  const lanes: Lane[] = [];
  const queueEnd = begin ?? end;
  if (queueEnd > 0) lanes.push(lane("queue", [{ kind: "queue", startMs: 0, endMs: queueEnd, note: "" }]));
  if (begin !== null) {
    const kind = run.status === "failed" || run.status === "timeout" ? "failed" : "work";
    lanes.push(lane("run", [{ kind, startMs: begin, endMs: Math.max(begin, end), note: run.status }]));
  }
  for (const question of interactions) {
    const startMs = since(question.asked_at);
    const closed =
      question.submitted_at ?? (question.status === "open" ? now : Math.min(now, question.expires_at));
    const endMs = Math.max(startMs, Math.min(since(closed), Math.max(end, startMs)));
    lanes.push({
      id: question.id,
      label: question.request.title,
      bars: [{ kind: "wait", startMs, endMs, note: question.status }],
    });
  }
  lanes.push(...callLanes(calls, MAX_LANES - lanes.length));
  const ends = lanes.flatMap((each) => each.bars.map((bar) => bar.endMs));
  return { totalMs: Math.max(1, end, ...ends), lanes };
}

function endOf(run: Run, begin: number | null, nowMs: number): number {
  if (run.duration_ms != null) return (begin ?? 0) + run.duration_ms;
  return run.finished_at == null ? nowMs : Math.max(0, (run.finished_at - run.created_at) * 1000);
}

function lane(id: string, bars: Bar[]): Lane {
  return { id, label: id, bars };
}

/** One lane for each action and resource, in the order of their first call. */
function callLanes(calls: AuditEntry[], limit: number): Lane[] {
  const lanes = new Map<string, Lane>();
  for (const call of calls.toSorted((a, b) => a.offset_ms - b.offset_ms)) {
    let label = call.resource === "" ? call.action : `${call.action} ${call.resource}`;
    if (!lanes.has(label) && lanes.size >= limit - 1) label = "…";
    const found = lanes.get(label) ?? { id: `call ${label}`, label, bars: [] };
    found.bars.push(barOf(call));
    lanes.set(label, found);
  }
  return [...lanes.values()];
}

function barOf(call: AuditEntry): Bar {
  const startMs = call.offset_ms;
  const endMs = startMs + (call.duration_ms ?? 0);
  const isFailed = call.outcome != null && call.outcome !== "ok";
  const kind = call.decision !== "allow" ? "denied" : isFailed ? "failed" : "call";
  return { kind, startMs, endMs, note: call.outcome ?? call.rule };
}

/** About five round marks of an axis, in ms. */
export function ticks(totalMs: number): number[] {
  const raw = totalMs / 5;
  const power = 10 ** Math.floor(Math.log10(Math.max(1, raw)));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw) ?? power * 10;
  const marks: number[] = [];
  for (let at = 0; at <= totalMs; at += step) marks.push(at);
  return marks;
}
