/** Action graphs of a run, folded from its results of type `x.graph.projection`. */

import type { Interaction, RunEvent } from "../api/client";
import { record } from "../api/errors";

/** Actions of a graph that are shown. The protocol agent declares at most 64. */
export const MAX_ACTIONS = 1000;
/** Dependencies of an action that are shown; the protocol agent's limit is 16. */
const MAX_DEPENDENCIES = 64;

export const GRAPH_STATUSES = [
  "pending",
  "running",
  "waiting",
  "blocked",
  "completed",
  "failed",
  "canceled",
] as const;
export type GraphStatus = (typeof GRAPH_STATUSES)[number];

export interface GraphAction {
  id: string;
  title: string;
  description: string;
  kind: string;
  status: GraphStatus;
  reason: string;
  /** Items of a list: done, of all. */
  progress: { done: number; total: number } | null;
  result: string;
  /** Null if the runner does not report dependencies. */
  dependsOn: string[] | null;
}

export interface Graph {
  id: string;
  title: string;
  note: string;
  status: GraphStatus;
  done: number;
  total: number;
  result: string;
  actions: GraphAction[];
  /** True if changes may be missing: events between were not read. */
  isPartial: boolean;
}

/** The graphs after further events, in the order of their first one; the same list without a change. */
export function foldGraphs(graphs: Graph[], events: RunEvent[]): Graph[] {
  return events.reduce<Graph[]>((before, event) => {
    const { type, data } = event as { type: string; data?: unknown };
    return type === "x.graph.projection" ? fold(before, record(data)) : before;
  }, graphs);
}

/** The graphs where later events were not read. A graph that has ended does not change any more. */
export function afterGap(graphs: Graph[]): Graph[] {
  const isOver = ({ status }: Graph) => ["completed", "failed", "canceled"].includes(status);
  return graphs.map((graph) => (isOver(graph) ? graph : { ...graph, isPartial: true }));
}

function fold(graphs: Graph[], data: Record<string, unknown>): Graph[] {
  const isWhole = data.form === "whole";
  const change = record(isWhole ? data.projection : data.form === "patch" ? data.patch : null);
  const id = text(change.graph_id);
  if (id === "") return graphs;
  const before = graphs.find((graph) => graph.id === id);
  const progress = record(change.progress);
  const next: Graph = {
    id,
    title: isWhole ? text(change.title) : (before?.title ?? ""),
    note: isWhole ? text(change.note) : (before?.note ?? ""),
    status: statusOf(change.status),
    done: number(progress.done),
    total: number(progress.total),
    result: text(change.result_summary),
    actions: actionsOf(isWhole ? [] : (before?.actions ?? []), change),
    isPartial: !isWhole && (before?.isPartial ?? true),
  };
  return before === undefined ? [...graphs, next] : graphs.map((graph) => (graph === before ? next : graph));
}

/** Changed actions keep their position; new ones follow. */
function actionsOf(before: GraphAction[], change: Record<string, unknown>): GraphAction[] {
  const removed = new Set(list(change.removed));
  const actions = new Map(before.map((action) => [action.id, action]));
  for (const id of removed) actions.delete(`${id}`);
  for (const action of list(change.actions).map(actionOf)) {
    if (action.id === "" || (actions.size >= MAX_ACTIONS && !actions.has(action.id))) continue;
    actions.set(action.id, action);
  }
  return [...actions.values()];
}

function actionOf(value: unknown): GraphAction {
  const action = record(value);
  const [done, total] = list(action.progress);
  const id = text(action.id);
  return {
    id,
    title: text(action.title) || id,
    description: text(action.description),
    kind: text(action.kind_label),
    status: statusOf(action.status),
    reason: text(action.reason),
    progress:
      typeof done === "number" && typeof total === "number"
        ? { done: number(done), total: number(total) }
        : null,
    result: text(action.result_summary),
    dependsOn: Array.isArray(action.depends_on)
      ? [...new Set(action.depends_on.map(text))].slice(0, MAX_DEPENDENCIES)
      : null,
  };
}

/** A status of a later version is shown as pending. */
function statusOf(value: unknown): GraphStatus {
  return GRAPH_STATUSES.find((status) => status === value) ?? "pending";
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function number(value: unknown): number {
  return typeof value === "number" && Number.isFinite(value) ? value : 0;
}

function list(value: unknown): unknown[] {
  return Array.isArray(value) ? value : [];
}

export type Approval = "asked" | "approved" | "denied" | "answered" | "expired" | "cancelled";

export interface ActionQuestion {
  interaction: Interaction;
  /** True for the approval of an effect, false for a question of the graph. */
  isApproval: boolean;
}

/**
 * Questions about the actions of a graph, by action, newest first as the API lists them. Their ids are
 * `graph.action.…`; one question can ask for the approval of several actions, with a field for each.
 */
export function questionsOf(graphId: string, interactions: Interaction[]): Map<string, ActionQuestion[]> {
  const found = new Map<string, ActionQuestion[]>();
  for (const interaction of interactions) {
    const { interaction_id: id, fields } = interaction.request;
    const [graph, first, kind] = id.split(".");
    if (graph !== graphId || first === undefined) continue;
    const isApproval = kind === "approve";
    const fieldIds = isApproval ? (fields ?? []).map((field) => field.id) : [];
    for (const action of new Set([first, ...fieldIds])) {
      found.set(action, [...(found.get(action) ?? []), { interaction, isApproval }]);
    }
  }
  return found;
}

/** Answers of the protocol agent's approvals that allow the call. */
const ALLOWING: unknown[] = ["allow_once", "allow_conversation"];
/** The action that sends the fields of an approval of several calls. */
const SUBMIT = "submit";

/** State of a question about an action. As for the protocol agent, an unknown answer denies. */
export function approvalOf(action: GraphAction, { interaction, isApproval }: ActionQuestion): Approval {
  switch (interaction.status) {
    case "open":
      return "asked";
    case "expired":
      return "expired";
    case "cancelled":
      return "cancelled";
    default:
      return isApproval ? verdictOf(action, interaction.answer) : "answered";
  }
}

function verdictOf(action: GraphAction, answer: Interaction["answer"]): Approval {
  if (answer == null) return "answered";
  const { action_id: button, values } = answer;
  const word = button == null || button === SUBMIT ? values[action.id] : button;
  return ALLOWING.includes(word) ? "approved" : "denied";
}
