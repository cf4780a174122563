import { expect, test } from "vitest";
import { diffLines, withContext } from "./diff";

const marks = { same: " ", added: "+", removed: "-", skipped: "…" };

function diff(before: string, after: string): string {
  return diffLines(before, after)
    .map(({ kind, text }) => marks[kind] + text)
    .join("|");
}

test("finds changed lines", () => {
  expect(diff("a\nb\nc", "a\nx\nc\nd")).toBe(" a|-b|+x| c|+d");
  expect(diff("a\nb", "b")).toBe("-a| b");
  expect(diff("same", "same")).toBe(" same");
  expect(diff("", "new")).toBe("+new");
  expect(diff("old", "")).toBe("-old");
});

test("shows changed lines with context", () => {
  const lines = withContext(diffLines("1\n2\n3\n4\n5", "1\n2\n3\n4\nx"), 1);
  expect(lines.map((line) => line.text)).toEqual(["…", "4", "5", "x"]);
  expect(withContext(diffLines("1", "1"), 3)).toEqual([]);
});

test("marks each group of skipped lines", () => {
  const lines = withContext(diffLines("1\n2\n3\n4\n5\n6", "x\n2\n3\n4\n5\ny"), 1);
  expect(lines.map((line) => line.text)).toEqual(["1", "x", "2", "…", "5", "6", "y"]);
});
