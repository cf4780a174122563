import { expect, test } from "vitest";
import { rulesIn, rulesOf, withoutRule } from "./tool-rules";

test("a list has no rules, and becomes rules that allow the same", () => {
  expect(rulesIn(["a"])).toBeNull();
  expect(rulesIn("*")).toBeNull();
  expect(rulesIn(undefined)).toBeNull();
  expect(rulesOf(["a", "b"])).toEqual({ a: "allow", b: "allow" });
  expect(rulesOf("*")).toEqual({ "*": "allow" });
  expect(rulesOf(undefined)).toEqual({});
});

test("rules stay as they are but for a removed one", () => {
  const rules = { "get_*": "ask", mail_send: "deny" } as const;
  expect(rulesOf(rules)).toBe(rules);
  expect(withoutRule(rules, "get_*")).toEqual({ mail_send: "deny" });
});
