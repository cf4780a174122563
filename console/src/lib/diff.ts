/** Difference of two texts by lines. */

export interface DiffLine {
  kind: "same" | "added" | "removed" | "skipped";
  text: string;
}

/** Lines of one side. Longer texts show as replaced: the table below grows with the product. */
const MAX_LINES = 1500;

export function diffLines(before: string, after: string): DiffLine[] {
  const old = linesOf(before);
  const now = linesOf(after);
  if (old.length > MAX_LINES || now.length > MAX_LINES) {
    return [...old.map((text) => line("removed", text)), ...now.map((text) => line("added", text))];
  }
  const common = commonLengths(old, now);
  const lines: DiffLine[] = [];
  let i = 0;
  let j = 0;
  while (i < old.length || j < now.length) {
    const [a, b] = [old[i], now[j]];
    if (a !== undefined && a === b) {
      lines.push(line("same", a));
      i += 1;
      j += 1;
    } else if (a !== undefined && (b === undefined || at(common, i + 1, j) >= at(common, i, j + 1))) {
      lines.push(line("removed", a));
      i += 1;
    } else if (b !== undefined) {
      lines.push(line("added", b));
      j += 1;
    }
  }
  return lines;
}

/** Lines of a text; none of an absent one. */
function linesOf(text: string): string[] {
  return text === "" ? [] : text.split("\n");
}

function line(kind: DiffLine["kind"], text: string): DiffLine {
  return { kind, text };
}

function at(table: number[][], i: number, j: number): number {
  return table[i]?.[j] ?? 0;
}

/** Length of the longest common subsequence of the rests from each pair of positions. */
function commonLengths(old: string[], now: string[]): number[][] {
  const table = Array.from({ length: old.length + 1 }, () => new Array<number>(now.length + 1).fill(0));
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      const row = table[i] ?? [];
      row[j] =
        old[i] === now[j] ? at(table, i + 1, j + 1) + 1 : Math.max(at(table, i + 1, j), at(table, i, j + 1));
    }
  }
  return table;
}

/** The changed lines with `around` unchanged ones next to them, and a mark for each group of skipped lines. */
export function withContext(lines: DiffLine[], around: number): DiffLine[] {
  const changed = lines.flatMap((each, index) => (each.kind === "same" ? [] : [index]));
  if (changed.length === 0) return [];
  const shown: DiffLine[] = [];
  lines.forEach((each, index) => {
    if (changed.some((other) => Math.abs(other - index) <= around)) shown.push(each);
    else if (shown.at(-1)?.kind !== "skipped") shown.push(line("skipped", "…"));
  });
  return shown;
}
