import { useId, useState } from "react";
import type { FieldFault } from "../../api/errors";
import { readControl } from "../../lib/config-form";
import { FieldFaults, invalid } from "../../ui/field-faults";

function isObject(value: unknown): boolean {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

interface JsonFieldProps {
  label: string;
  value: unknown;
  /** Faults that the gateway found in the value. */
  faults: FieldFault[];
  change: (value: Record<string, unknown>) => void;
  setFault: (name: string, fault: string | null) => void;
}

/** An object as JSON. Invalid text changes nothing and blocks saving. */
export function JsonField({ label, value, faults, change, setFault }: JsonFieldProps) {
  const id = useId();
  const [text, setText] = useState(() => JSON.stringify(value, null, 2));
  const [fault, setOwnFault] = useState<string | null>(null);
  const edit = (next: string) => {
    setText(next);
    const read = readControl("json", next);
    const found = "fault" in read ? read.fault : isObject(read.value) ? null : "not a JSON object";
    setOwnFault(found);
    setFault(label, found);
    if (found === null && "value" in read) change(read.value as Record<string, unknown>);
  };
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      <textarea
        id={id}
        rows={Math.min(20, text.split("\n").length + 1)}
        value={text}
        spellCheck={false}
        aria-invalid={fault !== null}
        {...invalid(`${id}-faults`, faults)}
        onChange={(event) => edit(event.target.value)}
      />
      {fault !== null && <p className="problem">{fault}</p>}
      <FieldFaults id={`${id}-faults`} faults={faults} isNamed />
    </div>
  );
}
