import { expect, test } from "vitest";
import type { Run } from "../api/client";
import { MAX_RUNS, readTree, rollUp, rowsOf, type TreeReader } from "./run-tree";

const run = (id: string) => ({ run_id: id }) as Run;

/** A reader of children by parent, newest first. Each run costs 1 and has 10 tokens. */
function reader(children: Record<string, string[]>, hasMore = false): TreeReader {
  return {
    children: async ({ run_id }) => ({ items: (children[run_id] ?? []).map(run), has_more: hasMore }),
    usage: async () => ({ cost: 1, tokens: 10 }),
  };
}

test("lists each run before its children, oldest first", async () => {
  const tree = await readTree(run("a"), reader({ a: ["c", "b"], b: ["d"] }));
  expect(rowsOf(tree).map(({ node, depth }) => `${depth} ${node.run.run_id}`)).toEqual([
    "0 a",
    "1 b",
    "2 d",
    "1 c",
  ]);
});

test("rolls up cost and tokens", async () => {
  const tree = await readTree(run("a"), reader({ a: ["c", "b"], b: ["d"] }));
  expect(rollUp(tree)).toEqual({ cost: 4, tokens: 40 });
  expect(tree.children.map(rollUp).map(({ cost }) => cost)).toEqual([2, 1]);
});

test("reads a bounded number of runs and says so", async () => {
  const many = Array.from({ length: 50 }, (_, at) => `b${at}`);
  const tree = await readTree(run("a"), reader({ a: many, b0: many.map((id) => `c${id}`) }));
  expect(rowsOf(tree)).toHaveLength(MAX_RUNS);
  expect(tree.isCut).toBe(false);
  expect(tree.children.find((child) => child.run.run_id === "b0")?.isCut).toBe(true);
  expect((await readTree(run("a"), reader({}, true))).isCut).toBe(true);
});
