import { useId } from "react";
import type { Schema } from "../../api/client";
import type { FieldFault } from "../../api/errors";
import { writeOut } from "../../lib/answer-form";
import { FieldFaults, invalid } from "../../ui/field-faults";

interface FieldProps {
  field: Schema<"InteractionField">;
  value: unknown;
  set: (value: unknown) => void;
  label: string;
  faults: FieldFault[];
}

export function QuestionField(props: FieldProps) {
  const { field, label, faults } = props;
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>
        {label}
        {field.required && " *"}
      </label>
      <Control {...props} id={id} />
      <FieldFaults id={`${id}-faults`} faults={faults} />
    </div>
  );
}

function Control({ field, value, set, faults, id }: FieldProps & { id: string }) {
  const text = typeof value === "string" ? value : value == null ? "" : `${value}`;
  const marks = invalid(`${id}-faults`, faults);
  const required = field.required ?? false;
  const common = { id, required, placeholder: field.placeholder ?? undefined, ...marks };
  switch (field.type) {
    case "textarea":
      return <textarea {...common} rows={4} value={text} onChange={(event) => set(event.target.value)} />;
    case "boolean":
      return (
        <input
          id={id}
          {...marks}
          type="checkbox"
          checked={value === true}
          onChange={(event) => set(event.target.checked)}
        />
      );
    case "number":
      return (
        <input
          {...common}
          type="number"
          step="any"
          value={text}
          onChange={(event) => set(event.target.value)}
        />
      );
    case "select":
      return (
        <select
          id={id}
          {...marks}
          required={required}
          value={text}
          onChange={(event) => set(event.target.value)}
        >
          <option value="" />
          <Options field={field} />
        </select>
      );
    case "multiselect":
      return (
        <select
          id={id}
          {...marks}
          multiple
          required={required}
          value={Array.isArray(value) ? value.map(String) : []}
          onChange={(event) => set([...event.target.selectedOptions].map((option) => option.value))}
        >
          <Options field={field} />
        </select>
      );
    default:
      // The value of a `file` is the id of an uploaded artifact.
      return <input {...common} value={text} onChange={(event) => set(event.target.value)} />;
  }
}

function Options({ field }: { field: Schema<"InteractionField"> }) {
  return (field.options ?? []).map((option) => (
    <option key={option.value} value={option.value}>
      {writeOut(option.label)}
    </option>
  ));
}
