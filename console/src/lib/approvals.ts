/** Approvals of tool calls, as the views show and create them, and the questions that lead to them. */

import type { Interaction, Schema } from "../api/client";
import { record } from "../api/errors";
import type { TextKey, Translate } from "../i18n";
import { type FormValues, initialValues, writeOut } from "./answer-form";
import type { Shown } from "./webhooks";

export type Approval = Schema<"Approval">;
export type ApprovalSpec = Schema<"ApprovalSpec">;
type Rules = NonNullable<ApprovalSpec["arguments"]>;
type Status = Schema<"ApprovalStatus">;

export const APPROVAL_STATES: Record<Status, Shown> = {
  active: { tone: "good", text: "approvals.active" },
  used: { tone: "off", text: "approvals.used" },
  expired: { tone: "off", text: "question.expired" },
  revoked: { tone: "bad", text: "keysOfApi.revoked" },
};

/** States of the list. A denial is an answer, not an approval. */
export const SHOWN_STATES = [...(Object.keys(APPROVAL_STATES) as Status[]), "denied"] as const;

export interface ApprovalFilters {
  status?: (typeof SHOWN_STATES)[number] | undefined;
  agent_id?: string | undefined;
  /** Part of the name of the tool. */
  tool?: string | undefined;
}

/** Filters of an address. Unknown states and empty values are ignored. */
export function readApprovalFilters(search: Record<string, unknown>): ApprovalFilters {
  const text = (value: unknown) =>
    typeof value === "string" && value.trim() !== "" ? value.trim() : undefined;
  return {
    status: SHOWN_STATES.find((status) => status === search.status),
    agent_id: text(search.agent_id),
    tool: text(search.tool),
  };
}

/** True if an approval passes the filters. The API has none for approvals. */
export function isShown({ status, agent_id, tool }: Approval, filters: ApprovalFilters): boolean {
  return (
    (filters.status === undefined || filters.status === status) &&
    (filters.agent_id === undefined || filters.agent_id === agent_id) &&
    tool.includes(filters.tool ?? "")
  );
}

const ACTIONS: Record<string, TextKey> = {
  allow_once: "approvals.allowOnce",
  allow_conversation: "approvals.allowConversation",
  allow_run: "approvals.allowRun",
  deny: "approvals.deny",
};
const FIELDS: Record<string, TextKey> = {
  arguments: "approvals.rules",
  call: "approvals.call",
  reason: "approvals.reason",
};
/** Fields of a question about an amendment, which lasts as long as its run. */
const RUN_FIELDS: Record<string, TextKey> = {
  arguments: "approvals.rulesOfRun",
  count: "approvals.countOfRun",
};

/** Field of a question with the rules for the arguments. */
export const RULES_FIELD = "arguments";

/** True for a question of the gateway about a tool call. A question of a runner has a ledger event. */
export function isCallQuestion({ sequence, request }: Pick<Interaction, "sequence" | "request">): boolean {
  const ids = request.actions?.map(({ id }) => id) ?? [];
  return sequence === 0 && ids.includes("allow_once") && ids.includes("deny");
}

/** Label of an action or field of a question. Those of the gateway are in the language of the reader. */
export function partLabel(
  t: Translate,
  question: Pick<Interaction, "sequence" | "request">,
  kind: "action" | "field",
  part: { id: string; label: string },
): string {
  if (!isCallQuestion(question)) return writeOut(part.label);
  const isAmendment = question.request.actions?.some(({ id }) => id === "allow_run") ?? false;
  const fields = isAmendment ? { ...FIELDS, ...RUN_FIELDS } : FIELDS;
  const key = (kind === "action" ? ACTIONS : fields)[part.id];
  return key === undefined ? writeOut(part.label) : t(key);
}

/** Values that the form of a question shows first. */
export function firstValues(question: Pick<Interaction, "sequence" | "request">): FormValues {
  const values = initialValues(question.request.fields ?? []);
  const rules = values[RULES_FIELD];
  if (!isCallQuestion(question) || typeof rules !== "string") return values;
  return { ...values, [RULES_FIELD]: readableRules(rules) };
}

/** The values that an action of such a question needs. Others would be stored as part of the answer. */
export function callValues(actionId: string | null, values: FormValues): FormValues {
  const needed: Record<string, string[]> = {
    allow_conversation: [RULES_FIELD],
    allow_run: [RULES_FIELD, "count"],
    deny: ["reason"],
  };
  const names = needed[actionId ?? ""] ?? [];
  return Object.fromEntries(Object.entries(values).filter(([name]) => names.includes(name)));
}

/** A question about a call that was answered with a denial. */
export function isDenial(question: Interaction): boolean {
  return isCallQuestion(question) && question.answer?.action_id === "deny";
}

/** White space other than U+0020, and characters without a glyph or that change the order of others. */
const HIDDEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{DI}\u2800]|(?! )\p{White_Space}/gu;

/**
 * The same JSON with a line for each rule, and with escapes for hidden characters: the rules that are sent are those
 * that are read. Numbers stay as they are written, because `1.0` covers other calls than `1`.
 */
export function readableRules(json: string): string {
  const escaped = json.replace(HIDDEN, (found) =>
    Array.from({ length: found.length }, (_, at) => escapeOf(found.charCodeAt(at))).join(""),
  );
  let depth = 0;
  // Strings, in which marks are text, are one token.
  const lines = escaped.replace(/"(?:\\.|[^"\\])*"|[{}[\],]/g, (token) => {
    if (token === "}" || token === "]") depth -= 1;
    const isOuter = depth === (token === "{" || token === "}" ? 0 : 1);
    if (token === "{" || token === "[") depth += 1;
    if (!isOuter || token.startsWith('"')) return token;
    if (token === "}") return "\n}";
    return token === "{" || token === "," ? `${token}\n  ` : token;
  });
  return lines.replace(/^\{\s+\}$/, "{}");
}

function escapeOf(unit: number): string {
  return `\\u${unit.toString(16).padStart(4, "0")}`;
}

/** The rules of a text; null for a text that is no JSON object. */
export function readRules(text: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? record(value) : null;
  } catch {
    return null;
  }
}

/** A rule in words. One that the page does not have is shown as JSON. */
export function ruleText(t: Translate, rule: unknown): string {
  const { prefix, one_of: values, range, any, ...others } = record(rule);
  const { min, max } = record(range);
  if ("equals" in others) return t("approvals.equals", { value: json(others.equals) });
  if (prefix !== undefined) return t("approvals.prefix", { value: json(prefix) });
  if (Array.isArray(values)) return t("approvals.oneOf", { values: values.map(json).join(", ") });
  if (any === true) return t("approvals.any");
  if (min !== undefined && max !== undefined) return t("approvals.range", { min: json(min), max: json(max) });
  if (min !== undefined) return t("approvals.min", { min: json(min) });
  if (max !== undefined) return t("approvals.max", { max: json(max) });
  return json(rule);
}

function json(value: unknown): string {
  return writeOut(JSON.stringify(value) ?? "");
}

/** Calls that began by an approval, of its maximum. */
export function usesOf({ used, count }: Pick<Approval, "used" | "count">): string {
  return count == null ? `${used}` : `${used} / ${count}`;
}

/** The fields of a new approval. The rules are text: the form keeps what is typed. */
export interface ApprovalDraft extends Omit<ApprovalSpec, "arguments"> {
  arguments: string;
}

/** A new approval, and the text of its body, in which the rules are as they are typed. Null: they are no JSON object. */
export function approvalOf(draft: ApprovalDraft): { spec: ApprovalSpec; body: string } | null {
  const { arguments: text, ...others } = draft;
  const rules = readRules(text);
  if (rules === null) return null;
  const body = `${JSON.stringify(others).slice(0, -1)},"arguments":${text}}`;
  return { spec: { ...others, arguments: rules as Rules }, body };
}
