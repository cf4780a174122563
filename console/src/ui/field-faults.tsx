import type { FieldFault } from "../api/errors";

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
