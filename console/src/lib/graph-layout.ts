/**
 * Layered layout of an action graph, from left to right: layers by the longest path, order by barycenters, positions by
 * the mean of the neighbours (Sugiyama, Tagawa and Toda, 1981).
 */

export const NODE = { width: 200, height: 64 };
const GAP = { layer: 72, node: 16, edge: 12 };
const MARGIN = 12;
const SWEEPS = 6;
/** Points that route edges around nodes. Graphs that need more have straight edges. */
const MAX_POINTS = 4000;

export interface LayoutNode {
  id: string;
  dependsOn: readonly string[];
}

export interface Point {
  x: number;
  y: number;
}

export interface PlacedNode extends Point {
  id: string;
  layer: number;
  /** Position in the layer, from the top. */
  row: number;
}

export interface PlacedEdge {
  from: string;
  to: string;
  /** From the right side of a node to the left side of the other. */
  points: Point[];
}

export interface Layout {
  width: number;
  height: number;
  nodes: PlacedNode[];
  edges: PlacedEdge[];
}

interface Edge {
  from: number;
  to: number;
}

/** A node, or a point of an edge that passes a layer. */
interface Cell {
  layer: number;
  height: number;
  before: number[];
  after: number[];
  y: number;
  row: number;
}

/** Positions of nodes and edges. Ids that are no node, duplicates and edges of a cycle are left out. */
export function layoutGraph(nodes: readonly LayoutNode[]): Layout {
  const index = new Map(nodes.map((node, at) => [node.id, at]));
  const declared = nodes.flatMap(({ dependsOn }, to): Edge[] =>
    [...new Set(dependsOn)].flatMap((id) => {
      const from = index.get(id);
      return from === undefined || from === to ? [] : [{ from, to }];
    }),
  );
  const { layers, edges } = layersOf(nodes.length, declared);
  const cells: Cell[] = layers.map((layer) => ({ ...cell(layer), height: NODE.height }));
  const routes = routesOf(edges, cells);
  const columns = columnsOf(cells);
  order(columns, cells);
  const height = align(columns, cells);
  const left = (layer: number) => MARGIN + layer * (NODE.width + GAP.layer);
  const middle = ({ y, height }: Cell) => y + height / 2;
  return {
    width: columns.length === 0 ? 0 : left(columns.length - 1) + NODE.width + MARGIN,
    height,
    nodes: nodes.map(({ id }, at) => {
      const { layer, row, y } = get(cells, at);
      return { id, layer, row, x: left(layer), y };
    }),
    edges: edges.map(({ from, to }, at) => {
      const [source, target] = [get(cells, from), get(cells, to)];
      const passed = get(routes, at).flatMap((point): Point[] => {
        const by = get(cells, point);
        const [x, y] = [left(by.layer), middle(by)];
        return [
          { x, y },
          { x: x + NODE.width, y },
        ];
      });
      return {
        from: get(nodes, from).id,
        to: get(nodes, to).id,
        points: [
          { x: left(source.layer) + NODE.width, y: middle(source) },
          ...passed,
          { x: left(target.layer), y: middle(target) },
        ],
      };
    }),
  };
}

/** Smooth path of an edge. */
export function pathOf(points: readonly Point[]): string {
  return points
    .map(({ x, y }, at) => {
      const before = points[at - 1];
      if (before === undefined) return `M${x} ${y}`;
      const bend = (before.x + x) / 2;
      return `C${bend} ${before.y} ${bend} ${y} ${x} ${y}`;
    })
    .join("");
}

/** The element at an index that exists by construction. */
function get<Item>(items: readonly Item[], index: number): Item {
  return items[index] as Item;
}

function cell(layer: number): Cell {
  return { layer, height: 0, before: [], after: [], y: 0, row: 0 };
}

/** Layer of each node: one more than that of its last dependency. Edges that close a cycle are dropped. */
function layersOf(size: number, edges: Edge[]): { layers: number[]; edges: Edge[] } {
  const layers = new Array<number>(size).fill(0);
  const open = new Array<number>(size).fill(0);
  const after: number[][] = layers.map(() => []);
  for (const { from, to } of edges) {
    get(after, from).push(to);
    open[to] = get(open, to) + 1;
  }
  const done = new Array<boolean>(size).fill(false);
  const rank = new Array<number>(size).fill(0);
  const ready = open.flatMap((count, node) => (count === 0 ? [node] : []));
  let placed = 0;
  let next = 0;
  while (placed < size) {
    // Without a ready node the rest has a cycle: its first node goes ahead.
    while (ready.length === placed && get(done, next)) next += 1;
    const node = ready.length > placed ? get(ready, placed) : next;
    if (ready.length === placed) ready.push(node);
    done[node] = true;
    rank[node] = placed;
    placed += 1;
    for (const to of get(after, node)) {
      if (get(done, to)) continue;
      layers[to] = Math.max(get(layers, to), get(layers, node) + 1);
      open[to] = get(open, to) - 1;
      if (open[to] === 0) ready.push(to);
    }
  }
  return { layers, edges: edges.filter(({ from, to }) => get(rank, from) < get(rank, to)) };
}

/** Adds cells for edges that pass layers, and connects all cells. Returns the cells between the ends of each edge. */
function routesOf(edges: Edge[], cells: Cell[]): number[][] {
  const span = ({ from, to }: Edge) => get(cells, to).layer - get(cells, from).layer - 1;
  const isRouted = edges.reduce((sum, edge) => sum + span(edge), 0) <= MAX_POINTS;
  return edges.map((edge) => {
    const route: number[] = [];
    const first = get(cells, edge.from).layer + 1;
    for (let step = 0; isRouted && step < span(edge); step += 1) {
      route.push(cells.push(cell(first + step)) - 1);
    }
    const path = [edge.from, ...route, edge.to];
    for (let step = 1; step < path.length; step += 1) {
      const [from, to] = [get(path, step - 1), get(path, step)];
      get(cells, from).after.push(to);
      get(cells, to).before.push(from);
    }
    return route;
  });
}

function columnsOf(cells: Cell[]): number[][] {
  const columns: number[][] = [];
  cells.forEach(({ layer }, at) => {
    while (columns.length <= layer) columns.push([]);
    get(columns, layer).push(at);
  });
  return columns;
}

/** Orders the cells of each layer by the mean row of their neighbours, to and fro. */
function order(columns: number[][], cells: Cell[]): void {
  const number = (column: number[]) => {
    column.forEach((at, row) => {
      get(cells, at).row = row;
    });
  };
  columns.forEach(number);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const isForward = sweep % 2 === 0;
    for (const column of isForward ? columns : columns.toReversed()) {
      const wanted = new Map(
        column.map((at) => {
          const { before, after, row } = get(cells, at);
          return [at, mean(isForward ? before : after, (one) => get(cells, one).row) ?? row];
        }),
      );
      column.sort((a, b) => (wanted.get(a) ?? 0) - (wanted.get(b) ?? 0));
      number(column);
    }
  }
}

/** Places each cell near the mean of its neighbours, without overlaps. Returns the height of all. */
function align(columns: number[][], cells: Cell[]): number {
  for (const column of columns) place(column, cells, () => 0);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const isForward = sweep % 2 === 0;
    for (const column of isForward ? columns : columns.toReversed()) {
      place(column, cells, ({ before, after, y, height }) => {
        const near = isForward ? before : after;
        const center = mean(near, (one) => get(cells, one).y + get(cells, one).height / 2);
        return center === null ? y : center - height / 2;
      });
    }
  }
  const top = cells.reduce((least, { y }) => Math.min(least, y), Number.POSITIVE_INFINITY);
  for (const one of cells) one.y += MARGIN - top;
  return (
    cells.reduce((most, { y, height }) => Math.max(most, y + height), 0) + (cells.length > 0 ? MARGIN : 0)
  );
}

/** Least squares from the wanted positions that keep order and gaps: pool adjacent violators. */
function place(column: number[], cells: Cell[], wanted: (cell: Cell) => number): void {
  let offset = 0;
  const offsets: number[] = [];
  const pools: { sum: number; size: number }[] = [];
  for (const at of column) {
    const one = get(cells, at);
    offsets.push(offset);
    let pool = { sum: wanted(one) - offset, size: 1 };
    for (let last = pools.at(-1); last && last.sum / last.size > pool.sum / pool.size; last = pools.at(-1)) {
      pool = { sum: pool.sum + last.sum, size: pool.size + last.size };
      pools.pop();
    }
    pools.push(pool);
    offset += one.height + (one.height > 0 ? GAP.node : GAP.edge);
  }
  let row = 0;
  for (const { sum, size } of pools) {
    for (let step = 0; step < size; step += 1, row += 1) {
      get(cells, get(column, row)).y = sum / size + get(offsets, row);
    }
  }
}

function mean(items: readonly number[], value: (item: number) => number): number | null {
  return items.length === 0 ? null : items.reduce((sum, item) => sum + value(item), 0) / items.length;
}

export type Direction = "left" | "right" | "up" | "down";

/** The nearest node in a direction: along an edge, or in the same layer. Null if there is none. */
export function neighbour(layout: Layout, id: string, direction: Direction): string | null {
  const from = layout.nodes.find((node) => node.id === id);
  if (from === undefined) return null;
  const isNear: Record<Direction, (node: PlacedNode) => boolean> = {
    up: (node) => node.layer === from.layer && node.y < from.y,
    down: (node) => node.layer === from.layer && node.y > from.y,
    left: (node) => layout.edges.some((edge) => edge.to === id && edge.from === node.id),
    right: (node) => layout.edges.some((edge) => edge.from === id && edge.to === node.id),
  };
  const distance = (node: PlacedNode) => Math.abs(node.y - from.y) + Math.abs(node.layer - from.layer);
  const near = layout.nodes.filter(isNear[direction]);
  return near.toSorted((a, b) => distance(a) - distance(b))[0]?.id ?? null;
}
