import { expect, test } from "vitest";
import type { Interaction } from "../api/client";
import { translate } from "../i18n";
import {
  type Approval,
  approvalOf,
  callValues,
  firstValues,
  isCallQuestion,
  isDenial,
  isShown,
  partLabel,
  readApprovalFilters,
  readableRules,
  readRules,
  ruleText,
  usesOf,
} from "./approvals";

const t = translate.bind(null, "en");

const QUESTION = {
  sequence: 0,
  request: {
    fields: [
      {
        id: "arguments",
        label: "Rules",
        type: "textarea",
        default: '{"/a":{"equals":1.0},"/b":{"any":true}}',
      },
      { id: "reason", label: "Reason", type: "text", default: null },
    ],
    actions: [
      { id: "allow_once", label: "Allow once" },
      { id: "deny", label: "Deny" },
    ],
  },
} as unknown as Interaction;

test("filters of an address have known states only", () => {
  const search = { status: "denied", agent_id: " a ", tool: "", other: "x" };
  expect(readApprovalFilters(search)).toEqual({ status: "denied", agent_id: "a", tool: undefined });
  expect(readApprovalFilters({ status: "<b>" }).status).toBeUndefined();
});

test("an approval is shown if it passes each filter", () => {
  const approval = { status: "active", agent_id: "a", tool: "fs_*" } as Approval;
  expect(isShown(approval, {})).toBe(true);
  expect(isShown(approval, { status: "active", agent_id: "a", tool: "fs" })).toBe(true);
  expect(isShown(approval, { status: "revoked" })).toBe(false);
  expect(isShown(approval, { agent_id: "b" })).toBe(false);
  expect(isShown(approval, { tool: "mail" })).toBe(false);
});

test("a question of a runner is none of the gateway", () => {
  expect(isCallQuestion(QUESTION)).toBe(true);
  expect(isCallQuestion({ ...QUESTION, sequence: 3 })).toBe(false);
  const actions = [{ id: "deny", label: "Deny" }];
  expect(isCallQuestion({ sequence: 0, request: { ...QUESTION.request, actions } })).toBe(false);
});

test("a denial is the answer to a question about a call", () => {
  const answer = { action_id: "deny", values: {}, by: { kind: "link" as const } };
  expect(isDenial({ ...QUESTION, answer })).toBe(true);
  expect(isDenial({ ...QUESTION, answer: { ...answer, action_id: "allow_once" } })).toBe(false);
  expect(isDenial({ ...QUESTION, sequence: 3, answer })).toBe(false);
});

test("labels of such a question are in the language of the reader", () => {
  const zh = translate.bind(null, "zh");
  expect(partLabel(zh, QUESTION, "action", { id: "deny", label: "Deny" })).toBe("拒绝");
  expect(partLabel(zh, { ...QUESTION, sequence: 3 }, "action", { id: "deny", label: "Deny" })).toBe("Deny");
  expect(partLabel(t, QUESTION, "action", { id: "later", label: "Later\u202e" })).toBe("Later⟨U+202E⟩");
  expect(partLabel(t, QUESTION, "field", { id: "deny", label: "A field" })).toBe("A field");
});

test("an answer has the values that its action needs", () => {
  const values = { arguments: "{}", count: 3, reason: "no", call: "{}" };
  expect(callValues("allow_once", values)).toEqual({});
  expect(callValues("allow_conversation", values)).toEqual({ arguments: "{}" });
  expect(callValues("allow_run", values)).toEqual({ arguments: "{}", count: 3 });
  expect(callValues("deny", values)).toEqual({ reason: "no" });
});

test("rules have a line each, and stay as they are written", () => {
  expect(firstValues(QUESTION)).toEqual({
    arguments: '{\n  "/a":{"equals":1.0},\n  "/b":{"any":true}\n}',
    reason: "",
  });
  expect(firstValues({ ...QUESTION, sequence: 3 }).arguments).not.toContain("\n");
  expect(readableRules('{"/a,{\\"":{"one_of":[1,{"b":[2,3]}]}}')).toBe(
    '{\n  "/a,{\\"":{"one_of":[1,{"b":[2,3]}]}\n}',
  );
  expect(readableRules("{}")).toBe("{}");
});

test("hidden characters of rules are escapes", () => {
  const rules = { "/a\u200b": { equals: "x\u202ey\u00a0\u3164\u{e0041}流 z" } };
  const text = readableRules(JSON.stringify(rules));
  expect(text).toBe('{\n  "/a\\u200b":{"equals":"x\\u202ey\\u00a0\\u3164\\udb40\\udc41流 z"}\n}');
  expect(readRules(text)).toEqual(rules);
});

test("rules are read from objects only", () => {
  expect(readRules('{"/a":{"any":true}}')).toEqual({ "/a": { any: true } });
  for (const text of ["", "[]", "7", "{"]) expect(readRules(text)).toBeNull();
});

test("rules are shown in words", () => {
  const shown = (rule: unknown) => ruleText(t, rule);
  expect(shown({ equals: null })).toBe("is null");
  expect(shown({ prefix: "/srv/\u202e" })).toBe('begins with "/srv/⟨U+202E⟩"');
  expect(shown({ one_of: ["a", 1] })).toBe('is one of "a", 1');
  expect(shown({ range: { min: 1, max: 5 } })).toBe("is 1 to 5");
  expect(shown({ range: { min: 1 } })).toBe("is at least 1");
  expect(shown({ range: { max: 5 } })).toBe("is at most 5");
  expect(shown({ any: true })).toBe("is any value, or none");
  expect(shown({ later: 1 })).toBe('{"later":1}');
  expect(shown("no rule")).toBe('"no rule"');
});

test("uses are shown with their maximum", () => {
  expect(usesOf({ used: 3, count: 200 })).toBe("3 / 200");
  expect(usesOf({ used: 3 })).toBe("3");
});

test("a new approval has its rules as they are typed", () => {
  const draft = { tool: "fs_*", agent: "coder", arguments: '{"/a":{"equals":1.0}}' };
  const made = approvalOf(draft);
  expect(made?.body).toBe('{"tool":"fs_*","agent":"coder","arguments":{"/a":{"equals":1.0}}}');
  expect(made?.spec).toEqual({ tool: "fs_*", agent: "coder", arguments: { "/a": { equals: 1 } } });
  expect(approvalOf({ ...draft, arguments: "{" })).toBeNull();
});
