import { expect, test } from "vitest";
import type { AuditEntry, Interaction, Run } from "../api/client";
import { layoutTimeline, ticks } from "./timeline";

function run(fields: Partial<Run>): Run {
  return { created_at: 100, status: "completed", ...fields } as Run;
}

function call(fields: Partial<AuditEntry>): AuditEntry {
  return {
    action: "invoke",
    resource: "m",
    decision: "allow",
    rule: "granted",
    offset_ms: 0,
    ...fields,
  } as AuditEntry;
}

test("a run has queue, work and calls on one axis", () => {
  const calls = [
    call({ offset_ms: 2500, duration_ms: 500, outcome: "timeout" }),
    call({ offset_ms: 2100, duration_ms: 300, outcome: "ok" }),
    call({ offset_ms: 2200, action: "state_set", resource: "", decision: "deny" }),
  ];
  const found = layoutTimeline({
    run: run({ started_at: 102, duration_ms: 1500 }),
    calls,
    interactions: [],
    now: 200,
  });
  expect(found.totalMs).toBe(3500);
  expect(
    found.lanes.map((lane) => [
      lane.label,
      ...lane.bars.map((bar) => `${bar.kind} ${bar.startMs}-${bar.endMs}`),
    ]),
  ).toEqual([
    ["queue", "queue 0-2000"],
    ["run", "work 2000-3500"],
    ["invoke m", "call 2100-2400", "failed 2500-3000"],
    ["state_set", "denied 2200-2200"],
  ]);
});

test("a live run ends now", () => {
  const found = layoutTimeline({ run: run({ status: "queued" }), calls: [], interactions: [], now: 105 });
  expect(found).toMatchObject({ totalMs: 5000, lanes: [{ bars: [{ kind: "queue", endMs: 5000 }] }] });
});

test("a question is a wait until its answer", () => {
  const question = {
    id: "i",
    status: "submitted",
    asked_at: 101,
    submitted_at: 103,
    expires_at: 900,
    request: { title: "Q" },
  };
  const found = layoutTimeline({
    run: run({ status: "running", started_at: 100 }),
    calls: [],
    interactions: [question as Interaction],
    now: 110,
  });
  expect(found.lanes[1]).toMatchObject({ label: "Q", bars: [{ kind: "wait", startMs: 1000, endMs: 3000 }] });
});

test("many resources share the last lane", () => {
  const calls = Array.from({ length: 100 }, (_, n) => call({ resource: `m${n}`, offset_ms: n }));
  const found = layoutTimeline({
    run: run({ started_at: 100, duration_ms: 200 }),
    calls,
    interactions: [],
    now: 200,
  });
  expect(found.lanes).toHaveLength(30);
  expect(found.lanes.at(-1)?.bars).toHaveLength(72);
});

test("marks are round", () => {
  expect(ticks(3500)).toEqual([0, 1000, 2000, 3000]);
  expect(ticks(1)).toEqual([0, 1]);
});
