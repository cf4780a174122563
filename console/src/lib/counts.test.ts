import { expect, test } from "vitest";
import { sumOf } from "./counts";

test("a sum of inexact counts is a lower bound", () => {
  const counts = {
    items: [
      { status: "failed" as const, count: 3, exact: true },
      { status: "timeout" as const, count: 4, exact: false },
      { status: "running" as const, count: 9, exact: true },
    ],
  };
  expect(sumOf(counts, ["failed", "timeout"])).toBe("7+");
  expect(sumOf(counts, ["failed"])).toBe("3");
  expect(sumOf(undefined, ["failed"])).toBe("");
});
