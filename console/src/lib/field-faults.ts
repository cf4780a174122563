/** Faults of a refused form, by the fields that they name. */

import type { FieldFault } from "../api/errors";
import { canonical } from "./format";

/** Refused values of a request, with the reason. */
export interface Refusal {
  sent: unknown;
  faults: FieldFault[];
}

/** Segments of a JSON pointer (RFC 6901). */
export function segmentsOf(pointer: string): string[] {
  return pointer
    .split("/")
    .slice(1)
    .map((segment) => segment.replaceAll("~1", "/").replaceAll("~0", "~"));
}

/** JSON pointer of a field. */
export function pointerTo(...segments: string[]): string {
  return segments.map((segment) => `/${segment.replaceAll("~", "~0").replaceAll("/", "~1")}`).join("");
}

/** Faults of the field at a pointer, or of a value below it. */
export function faultsAt(faults: FieldFault[], pointer: string): FieldFault[] {
  return faults.filter((fault) => fault.pointer === pointer || fault.pointer.startsWith(`${pointer}/`));
}

/** Faults that no field with one of these pointers shows. */
export function faultsElsewhere(faults: FieldFault[], pointers: string[]): FieldFault[] {
  const shown = new Set(pointers.flatMap((pointer) => faultsAt(faults, pointer)));
  return faults.filter((fault) => !shown.has(fault));
}

/** The faults whose values are as they were refused. */
export function standingFaults(refusal: Refusal | null, now: unknown): FieldFault[] {
  if (refusal === null) return [];
  const { sent, faults } = refusal;
  return faults.filter(({ pointer }) => {
    const path = segmentsOf(pointer);
    return canonical(valueAt(sent, path) ?? null) === canonical(valueAt(now, path) ?? null);
  });
}

function valueAt(value: unknown, path: string[]): unknown {
  return path.reduce<unknown>(
    (inner, segment) =>
      // A text holds the values below it, as JSON.
      typeof inner === "string"
        ? inner
        : typeof inner === "object" && inner !== null && Object.hasOwn(inner, segment)
          ? (inner as Record<string, unknown>)[segment]
          : undefined,
    value,
  );
}
