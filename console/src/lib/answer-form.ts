/** The answer to a question, from its form. */

import type { Schema } from "../api/client";

type Field = Schema<"InteractionField">;
export type FormValues = Record<string, unknown>;

/** Values that the form shows first. */
export function initialValues(fields: Field[]): FormValues {
  return Object.fromEntries(fields.map((field) => [field.id, initialValue(field)]));
}

function initialValue(field: Field): unknown {
  if (field.default != null) return field.default;
  if (field.type === "boolean") return false;
  return field.type === "multiselect" ? [] : "";
}

/** Values to send: optional empty ones are left out, numbers are numbers. */
export function submittedValues(fields: Field[], values: FormValues): FormValues {
  const sent: FormValues = {};
  for (const field of fields) {
    const value = values[field.id];
    if (value === "" || value === undefined || value === null) continue;
    sent[field.id] = field.type === "number" ? Number(value) : value;
  }
  return sent;
}

/**
 * Characters that a reader does not see or that change the order of the text, written as `⟨U+202E⟩`: the text that is
 * approved is the text that is read.
 */
export function writeOut(text: string): string {
  // Unassigned and private characters, controls except line ends and tabs, and format characters such as bidi marks.
  return text.replace(/[\p{Cf}\p{Co}\p{Cn}\p{Zl}\p{Zp}]|(?![\n\r\t])\p{Cc}/gu, (found) => {
    const code = found.codePointAt(0) ?? 0;
    return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}
