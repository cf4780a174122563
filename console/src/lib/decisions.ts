import { record } from "../api/errors";

/** A resource of a run, and the layer that granted or removed it. */
export interface GrantDecision {
  kind: string;
  id: string;
  operation: string;
  granted: boolean;
  layer: string;
  rule: string;
}

/** Decisions as the API documents them; other shapes are text. */
export function readDecisions(values: unknown[]): GrantDecision[] {
  const text = (value: unknown) =>
    typeof value === "string" ? value : value == null ? "" : JSON.stringify(value);
  return values.map(record).map((value) => ({
    kind: text(value.kind),
    id: text(value.id),
    operation: text(value.operation),
    granted: value.granted === true,
    layer: text(value.layer),
    rule: text(value.rule),
  }));
}
