/** A run with its child runs, and what they used together. */

import type { Run } from "../api/client";

/** Runs of a tree that are read, with two requests each. */
export const MAX_RUNS = 60;

export interface RunUse {
  cost: number;
  tokens: number;
}

export interface RunNode {
  run: Run;
  own: RunUse;
  children: RunNode[];
  /** True if the run has more child runs than were read. */
  isCut: boolean;
}

export interface TreeReader {
  children: (run: Run) => Promise<{ items: Run[]; has_more: boolean }>;
  usage: (run: Run) => Promise<RunUse>;
}

/** Reads a tree level by level, each run's children oldest first, up to `MAX_RUNS` runs. */
export async function readTree(root: Run, reader: TreeReader): Promise<RunNode> {
  const node = async (run: Run): Promise<RunNode> => {
    return { run, own: await reader.usage(run), children: [], isCut: false };
  };
  const top = await node(root);
  let size = 1;
  for (let level = [top]; level.length > 0; ) {
    const pages = await Promise.all(level.map(({ run }) => reader.children(run)));
    const next: RunNode[] = [];
    for (const [at, parent] of level.entries()) {
      const { items, has_more } = pages[at] ?? { items: [], has_more: false };
      const shown = items.toReversed().slice(0, MAX_RUNS - size);
      size += shown.length;
      parent.children = await Promise.all(shown.map(node));
      parent.isCut = has_more || shown.length < items.length;
      next.push(...parent.children);
    }
    level = next;
  }
  return top;
}

/** Use of a run and all runs below it. */
export function rollUp({ own, children }: RunNode): RunUse {
  return children
    .map(rollUp)
    .reduce((sum, use) => ({ cost: sum.cost + use.cost, tokens: sum.tokens + use.tokens }), own);
}

export interface TreeRow {
  node: RunNode;
  depth: number;
}

/** All runs, each before its children. */
export function rowsOf(node: RunNode, depth = 0): TreeRow[] {
  return [{ node, depth }, ...node.children.flatMap((child) => rowsOf(child, depth + 1))];
}
