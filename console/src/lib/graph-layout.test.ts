import { expect, test } from "vitest";
import { type Layout, layoutGraph, NODE, neighbour, pathOf } from "./graph-layout";

function graph(text: string) {
  // `c: a b` depends on a and b.
  return text.split("; ").map((line) => {
    const [id = "", needs = ""] = line.split(":");
    return { id, dependsOn: needs.split(" ").filter((need) => need !== "") };
  });
}

function layers(layout: Layout): Record<string, number> {
  return Object.fromEntries(layout.nodes.map(({ id, layer }) => [id, layer]));
}

function overlaps(layout: Layout): string[] {
  return layout.nodes.flatMap((a, at) =>
    layout.nodes
      .slice(at + 1)
      .filter((b) => a.x === b.x && Math.abs(a.y - b.y) < NODE.height)
      .map((b) => `${a.id} ${b.id}`),
  );
}

test("a node is one layer behind its last dependency", () => {
  const layout = layoutGraph(graph("clock; words; note: words; receipt: note clock"));
  expect(layers(layout)).toEqual({ clock: 0, words: 0, note: 1, receipt: 2 });
  expect(layout.edges.map(({ from, to }) => `${from} ${to}`)).toEqual([
    "words note",
    "note receipt",
    "clock receipt",
  ]);
});

test("a graph without edges is one column", () => {
  const layout = layoutGraph(graph("a; b; c"));
  expect(new Set(layout.nodes.map(({ x }) => x)).size).toBe(1);
  expect(overlaps(layout)).toEqual([]);
});

test("an empty graph has no size", () => {
  expect(layoutGraph([])).toEqual({ width: 0, height: 0, nodes: [], edges: [] });
});

test("an edge that passes a layer keeps clear of its nodes", () => {
  const { edges, nodes } = layoutGraph(graph("a; b: a; c: a b"));
  const points = edges.find(({ from, to }) => from === "a" && to === "c")?.points ?? [];
  const b = nodes.find(({ id }) => id === "b");
  expect(points).toHaveLength(4);
  for (const { y } of points.slice(1, -1)) {
    expect(b && (y <= b.y || y >= b.y + NODE.height)).toBe(true);
  }
});

test("parallel chains do not cross", () => {
  const { nodes } = layoutGraph(graph("a; b; y: b; x: a; p: y; q: x"));
  const row = (id: string) => nodes.find((node) => node.id === id)?.row ?? -1;
  expect([row("a") < row("b"), row("x") < row("y"), row("q") < row("p")]).toEqual([true, true, true]);
});

test("unknown, repeated and own dependencies are ignored", () => {
  expect(layoutGraph(graph("a: a none; b: a a")).edges).toHaveLength(1);
});

test("a cycle is cut", () => {
  const layout = layoutGraph(graph("a: c; b: a; c: b; d: c"));
  expect(layout.nodes).toHaveLength(4);
  expect(layout.edges.map(({ from, to }) => from + to).sort()).toEqual(["ab", "bc", "cd"]);
  expect(overlaps(layout)).toEqual([]);
});

test("places 200 nodes with 16 dependencies each in time", () => {
  const wide = Array.from({ length: 200 }, (_, at) => ({
    id: `n${at}`,
    dependsOn: Array.from({ length: Math.min(16, at) }, (_, step) => `n${at - 1 - step}`),
  }));
  const fan = Array.from({ length: 200 }, (_, at) => ({
    id: `n${at}`,
    dependsOn: at < 10 ? [] : Array.from({ length: 4 }, (_, step) => `n${(at * 7 + step * 3) % 10}`),
  }));
  const begin = performance.now();
  for (const nodes of [wide, fan]) {
    const layout = layoutGraph(nodes);
    expect(overlaps(layout)).toEqual([]);
    const { width, height } = layout;
    const isInside = ({ x, y }: { x: number; y: number }) =>
      x >= 0 && y >= 0 && x + NODE.width <= width && y + NODE.height <= height;
    expect(layout.nodes.every(isInside)).toBe(true);
  }
  expect(performance.now() - begin).toBeLessThan(1000);
});

test("the arrow keys follow edges and layers", () => {
  const layout = layoutGraph(graph("a; b; c: a b"));
  expect(neighbour(layout, "a", "right")).toBe("c");
  expect(neighbour(layout, "c", "right")).toBeNull();
  expect(neighbour(layout, "c", "left")).not.toBeNull();
  expect(neighbour(layout, "a", "down")).toBe("b");
  expect(neighbour(layout, "b", "up")).toBe("a");
  expect(neighbour(layout, "none", "up")).toBeNull();
});

test("a path is smooth", () => {
  const points = [
    { x: 0, y: 0 },
    { x: 10, y: 20 },
  ];
  expect(pathOf(points)).toBe("M0 0C5 0 5 20 10 20");
});
