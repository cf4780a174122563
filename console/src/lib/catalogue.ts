/** Names that the gateway offers to agents, and the ones that an agent names in vain. */

import type { Schema } from "../api/client";
import { record } from "../api/errors";
import type { ConfigItem } from "./config-form";
import { pointerTo } from "./field-faults";
import { type NameOption, type Names, textsOf, unknownNames } from "./names";

export interface ModelOption extends NameOption {
  operations: string[];
}

/** Options of each kind; undefined while they are not read. The API lists no files. */
export interface OfferedNames {
  models?: ModelOption[] | undefined;
  tools?: NameOption[] | undefined;
  knowledge_bases?: NameOption[] | undefined;
  skills?: NameOption[] | undefined;
  agents?: NameOption[] | undefined;
  files?: undefined;
}

export type ResourceKind = keyof OfferedNames;

/** Kinds of `resource_policy` that name entries of the catalogue. */
export const RESOURCES: readonly ResourceKind[] = [
  "models",
  "tools",
  "knowledge_bases",
  "skills",
  "agents",
  "files",
];

/** Operation of a model that a selector needs. */
const OPERATIONS: Partial<Record<ConfigItem["kind"], string>> = {
  model: "invoke",
  models: "invoke",
  embedding: "embed",
  rerank: "rerank",
};

/** Options of a field of the config; undefined for a field that chooses no names. */
export function optionsFor(item: ConfigItem, offered: OfferedNames): NameOption[] | undefined {
  if (item.kind === "bases") return offered.knowledge_bases;
  const operation = OPERATIONS[item.kind];
  if (operation === undefined) return undefined;
  return offered.models?.filter(
    ({ operations }) => operations.length === 0 || operations.includes(operation),
  );
}

/** Names that a field of the config chooses, in their order. */
export function chosenIn(item: ConfigItem, config: Record<string, unknown>): string[] {
  const value = config[item.name] ?? item.default;
  if (item.kind !== "models") return textsOf(value);
  const { primary, fallbacks } = modelChoice(value);
  return [...textsOf(primary), ...fallbacks];
}

export interface ModelChoice {
  primary: string;
  fallbacks: string[];
}

/** Value of a selector of a model with fallbacks; older forms store the id of one model. */
export function modelChoice(value: unknown): ModelChoice {
  if (typeof value === "string") return { primary: textsOf(value)[0] ?? "", fallbacks: [] };
  const { primary, fallbacks } = record(value);
  return { primary: textsOf(primary)[0] ?? "", fallbacks: textsOf(fallbacks ?? []) };
}

export interface UnknownNames {
  pointer: string;
  names: string[];
}

/** Fields of an agent with names that the gateway does not offer. */
export function unknownIn(
  spec: Schema<"AgentSpec">,
  items: ConfigItem[],
  offered: OfferedNames,
): UnknownNames[] {
  const policy = RESOURCES.map((kind) => ({
    pointer: pointerTo("resource_policy", kind),
    names: unknownNames(policyNames(spec, kind), offered[kind]),
  }));
  const config = items.map((item) => ({
    pointer: pointerTo("config", item.name),
    names: unknownNames(chosenIn(item, record(spec.config)), optionsFor(item, offered)),
  }));
  return [...config, ...policy].filter(({ names }) => names.length > 0);
}

/** Names that fields of the config choose and that the policy does not grant. A run fails without its model. */
export function ungrantedIn(spec: Schema<"AgentSpec">, items: ConfigItem[]): UnknownNames[] {
  const ungranted = items.flatMap((item) => {
    const kind = item.kind === "bases" ? "knowledge_bases" : "models";
    const granted = policyNames(spec, kind);
    if (granted === "*" || (item.kind !== "bases" && OPERATIONS[item.kind] === undefined)) return [];
    const names = chosenIn(item, record(spec.config)).filter((name) => !granted.includes(name));
    return [{ pointer: pointerTo("config", item.name), names }];
  });
  return ungranted.filter(({ names }) => names.length > 0);
}

export function policyNames(spec: Schema<"AgentSpec">, kind: ResourceKind): Names {
  const value: unknown = spec.resource_policy?.[kind];
  return value === "*" ? "*" : textsOf(value);
}

/** True if the manifest of the runner requests nothing of this kind, so that a grant has no effect. */
export function isUnrequested(manifest: unknown, kind: string): boolean {
  const { permissions, capabilities } = record(manifest);
  if (permissions === undefined) return false;
  if (kind === "skills") return record(capabilities).skill_authoring !== true;
  const wanted = record(permissions)[kind];
  return !Array.isArray(wanted) || wanted.length === 0;
}
