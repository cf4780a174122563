import { expect, test } from "vitest";
import type { Schema } from "../api/client";
import { initialValues, submittedValues, writeOut } from "./answer-form";

function field(id: string, type: string, fallback?: unknown): Schema<"InteractionField"> {
  return { id, label: id, type, default: fallback } as Schema<"InteractionField">;
}

test("sends numbers as numbers and omits empty fields", () => {
  const fields = [
    field("n", "number"),
    field("t", "text"),
    field("b", "boolean"),
    field("m", "multiselect", ["a"]),
  ];
  const values = initialValues(fields);
  expect(values).toEqual({ n: "", t: "", b: false, m: ["a"] });
  expect(submittedValues(fields, { ...values, n: "4.5" })).toEqual({ n: 4.5, b: false, m: ["a"] });
});

test("writes out hidden characters", () => {
  expect(writeOut("rm\u202e -rf\u200b\u0007\nnext\t流")).toBe("rm⟨U+202E⟩ -rf⟨U+200B⟩⟨U+0007⟩\nnext\t流");
});
