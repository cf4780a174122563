import { expect, test } from "vitest";
import type { Run } from "../api/client";
import { actOnAll, bulkKind, collectRuns, countByAgent, MAX_BULK, type Progress } from "./bulk";

const runs = (...ids: string[]) =>
  ids.map((run_id) => ({ run_id, agent_id: "a", agent_name: run_id[0] }) as Run);

test("an act must fit each status of the filter", () => {
  expect(bulkKind({ statuses: "running,queued" })).toBe("cancel");
  expect(bulkKind({ statuses: "failed,timeout" })).toBe("retry");
  expect(bulkKind({ statuses: "failed,running" })).toBeNull();
  expect(bulkKind({ statuses: "completed" })).toBeNull();
  expect(bulkKind({ agent_id: "a" })).toBeNull();
});

test("collects pages up to the limit", async () => {
  const cursors: (string | undefined)[] = [];
  const found = await collectRuns(async (cursor) => {
    cursors.push(cursor);
    return cursor === undefined ? { items: runs("a1"), next: "2" } : { items: runs("a2"), next: undefined };
  });
  expect(found).toMatchObject({ isCut: false, runs: [{ run_id: "a1" }, { run_id: "a2" }] });
  expect(cursors).toEqual([undefined, "2"]);
  const endless = await collectRuns(async () => ({ items: runs(...Array(300).fill("x")), next: "n" }));
  expect(endless.runs).toHaveLength(MAX_BULK);
  expect(endless.isCut).toBe(true);
});

test("a failure does not stop the other runs", async () => {
  const seen: Progress[] = [];
  const act = async (runId: string) => {
    if (runId === "b") throw new Error("refused");
  };
  await actOnAll(runs("a", "b", "c"), act, (progress) => seen.push(progress), new AbortController().signal);
  expect(seen.at(-1)).toEqual({ done: 3, failed: [{ runId: "b", reason: "refused" }] });
});

test("an abort stops before the next run", async () => {
  const abort = new AbortController();
  const acted: string[] = [];
  const act = async (runId: string) => acted.push(runId);
  await actOnAll(runs("a", "b"), act, () => abort.abort(), abort.signal);
  expect(acted).toEqual(["a"]);
});

test("counts runs by agent", () => {
  expect(countByAgent(runs("b1", "a1", "a2"))).toEqual([
    ["a", 2],
    ["b", 1],
  ]);
});
