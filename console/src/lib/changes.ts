/** Administrative changes: filters of their list, and their patches as two texts. */

import type { Schema } from "../api/client";
import type { paths } from "../api/schema";
import type { TextKey } from "../i18n";
import { writeOut } from "./answer-form";

export type Change = Schema<"AdminChange">;
export type ObjectKind = Change["kind"];
type ChangeQuery = NonNullable<paths["/v1/changes"]["get"]["parameters"]["query"]>;

export const OBJECT_KINDS: Record<ObjectKind, TextKey> = {
  agent: "changes.kind.agent",
  runner_endpoint: "changes.kind.runner_endpoint",
  api_key: "changes.kind.api_key",
  budget: "changes.kind.budget",
  webhook: "changes.kind.webhook",
  source: "changes.kind.source",
  schedule: "changes.kind.schedule",
  document: "changes.kind.document",
  pause: "changes.kind.pause",
  skill: "changes.kind.skill",
  approval: "changes.kind.approval",
  workspace: "changes.kind.workspace",
};

export const KINDS = Object.keys(OBJECT_KINDS) as ObjectKind[];

/** Filters of the list, as the address has them. */
export interface ChangeFilters {
  kind?: ObjectKind | undefined;
  object_id?: string | undefined;
  /** Id of an API key, `config` or `cli`. */
  actor?: string | undefined;
  /** Epoch seconds. */
  since?: string | undefined;
  order?: "oldest" | undefined;
}

/** Filters of an address. Unknown words, empty values and malformed times are ignored. */
export function readChangeFilters(search: Record<string, unknown>): ChangeFilters {
  const text = (value: unknown) =>
    typeof value === "string" && value.trim() !== "" ? value.trim() : undefined;
  const since = text(search.since);
  return {
    kind: KINDS.find((kind) => kind === search.kind),
    object_id: text(search.object_id),
    actor: text(search.actor),
    since: since !== undefined && /^\d{1,15}$/.test(since) ? since : undefined,
    order: search.order === "oldest" ? "oldest" : undefined,
  };
}

/** The filters as the API takes them. */
export function changesOf({ since, ...others }: ChangeFilters): ChangeQuery {
  const given = Object.entries(others).filter(([, value]) => value !== undefined);
  return { ...Object.fromEntries(given), ...(since === undefined ? {} : { since: Number(since) }) };
}

/** Address of a page of the list for a program. */
export function changesPath(filters: ChangeFilters): string {
  const words = Object.entries(changesOf(filters)).map(([name, value]) => [name, `${value}`]);
  const search = new URLSearchParams(words).toString();
  return `/v1/changes${search === "" ? "" : `?${search}`}`;
}

interface PatchOperation {
  op: string;
  path: string;
  value?: unknown;
}

export interface ChangedTexts {
  before: string;
  after: string;
}

/** The old and the new values of a change. Each line of a changed object begins with the pointer of the value. */
export function textsOf(change: Pick<Change, "patch">): ChangedTexts {
  const operations = change.patch as unknown as PatchOperation[];
  const tested = operations.filter(({ op }) => op === "test");
  const set = operations.filter(({ op }) => op === "add" || op === "replace");
  return { before: linesOf(tested), after: linesOf(set) };
}

function linesOf(operations: PatchOperation[]): string {
  const lines = operations.map(({ path, value }) =>
    // The pointer of a complete object is empty.
    path === "" ? JSON.stringify(value, null, 2) : `${path}: ${JSON.stringify(value)}`,
  );
  return writeOut(lines.join("\n"));
}
