/** Rules of an agent's policy for its tools: `allow`, `ask` or `deny` by name or pattern. */

import type { Schema } from "../api/client";

type ToolPolicy = Schema<"ToolPolicy">;
export type ToolRule = Schema<"ToolRule">;
export type ToolRules = Record<string, ToolRule>;

export const TOOL_RULES = ["allow", "ask", "deny"] as const satisfies ToolRule[];

/** The rules of a policy; null for a list of names or `"*"`, which allow. */
export function rulesIn(tools: ToolPolicy | null | undefined): ToolRules | null {
  return typeof tools === "object" && tools !== null && !Array.isArray(tools) ? tools : null;
}

/** Rules that allow what a list of names allows. */
export function rulesOf(tools: ToolPolicy | null | undefined): ToolRules {
  const names = tools === "*" ? ["*"] : Array.isArray(tools) ? tools : [];
  return rulesIn(tools) ?? Object.fromEntries(names.map((name) => [name, "allow"]));
}

/** The rules without one. */
export function withoutRule(rules: ToolRules, name: string): ToolRules {
  const { [name]: _, ...others } = rules;
  return others;
}
