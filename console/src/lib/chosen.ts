/** Answers to questions, as their readers see them. */

import type { Interaction, Schema } from "../api/client";

/** The action that was chosen; undefined for an answer without one. */
export function chosenAction({ request, answer }: Interaction): Schema<"InteractionAction"> | undefined {
  return request.actions?.find(({ id }) => id === answer?.action_id);
}

export interface AnsweredField {
  id: string;
  label: string;
  value: string;
}

/** Fields with a value, in the order of the form. Options have their labels. */
export function answeredFields({ request, answer }: Interaction): AnsweredField[] {
  const values = answer?.values ?? {};
  return (request.fields ?? [])
    .filter(({ id }) => values[id] != null)
    .map(({ id, label, options }) => {
      const text = (value: unknown) =>
        options?.find((option) => option.value === value)?.label ?? textOf(value);
      const value = values[id];
      return { id, label, value: Array.isArray(value) ? value.map(text).join(", ") : text(value) };
    });
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}
