import { type ReactNode, type RefObject, useEffect, useId } from "react";
import type { FieldFault } from "../api/errors";
import type { Refusal } from "../lib/field-faults";

/** Faults of one field. Pointers are shown only where they say more than the field, with `isNamed`. */
export function FieldFaults({
  id,
  faults,
  isNamed,
}: {
  id?: string;
  faults: FieldFault[];
  isNamed?: boolean;
}) {
  if (faults.length === 0) return null;
  return (
    <ul className="problem plain" id={id}>
      {faults.map(({ pointer, message }) => (
        <li key={`${pointer} ${message}`}>
          {isNamed && <code>{pointer}</code>} {message}
        </li>
      ))}
    </ul>
  );
}

/** Attributes of a control with faults in the list `id`. */
export function invalid(id: string, faults: FieldFault[]) {
  return faults.length === 0 ? {} : { "aria-invalid": true, "aria-describedby": id };
}

/** Moves the focus to the first control with a fault, once for each refusal. */
export function useFaultFocus(form: RefObject<HTMLElement | null>, refusal: Refusal | null): void {
  useEffect(() => {
    if (refusal !== null) form.current?.querySelector<HTMLElement>("[aria-invalid=true]")?.focus();
  }, [form, refusal]);
}

interface FieldProps {
  label: string;
  faults: FieldFault[];
  children: (marks: { id: string } & ReturnType<typeof invalid>) => ReactNode;
}

/** A control with its label and its faults. */
export function Field({ label, faults, children }: FieldProps) {
  const id = useId();
  return (
    <div>
      <label htmlFor={id}>
        {label}
        {children({ id, ...invalid(`${id}-faults`, faults) })}
      </label>
      <FieldFaults id={`${id}-faults`} faults={faults} />
    </div>
  );
}
