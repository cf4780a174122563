import { useMutation } from "@tanstack/react-query";
import { type FormEvent, type ReactNode, useRef, useState } from "react";
import { type FieldFault, faultsOf } from "../api/errors";
import { useText } from "../i18n";
import { faultsAt, faultsElsewhere, type Refusal, standingFaults } from "../lib/field-faults";
import { canonical } from "../lib/format";
import { Field, FieldFaults, useFaultFocus } from "./field-faults";
import { LeaveGuard } from "./leave-guard";
import { Problem } from "./problem";

/** The editable part of an object, and its version. */
export interface Stored<Spec> {
  spec: Spec;
  version: number;
}

export interface SpecFields<Spec> {
  spec: Spec;
  change: (fields: Partial<Spec>) => void;
  /** Faults of the field at a pointer. */
  faultsAt: (pointer: string) => FieldFault[];
}

interface SpecFormProps<Spec> {
  stored: Stored<Spec>;
  /** Pointers of the fields. Faults of others are listed above the fields. */
  pointers: string[];
  label: string;
  /** Saves unless the object has another version now. */
  save: (spec: Spec, version: number) => Promise<Stored<Spec>>;
  children: (fields: SpecFields<Spec>) => ReactNode;
}

/** Form of an object that is saved in one request. Another version replaces the form only while it has no changes. */
export function SpecForm<Spec extends object>({
  stored,
  pointers,
  label,
  save,
  children,
}: SpecFormProps<Spec>) {
  const t = useText();
  const [base, setBase] = useState(stored);
  const [spec, setSpec] = useState(stored.spec);
  const [refusal, setRefusal] = useState<Refusal | null>(null);
  const form = useRef<HTMLFormElement>(null);
  useFaultFocus(form, refusal);
  const restart = (next: Stored<Spec>) => {
    setBase(next);
    setSpec(next.spec);
  };
  const isDirty = canonical(spec) !== canonical(base.spec);
  if (!isDirty && stored.version > base.version) restart(stored);
  const saving = useMutation({
    mutationFn: () => save(spec, base.version),
    onSuccess: restart,
    onError: (error) => setRefusal({ sent: spec, faults: faultsOf(error) }),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    saving.mutate();
  };
  const faults = standingFaults(refusal, spec);
  const { error } = saving;
  return (
    <form ref={form} onSubmit={submit}>
      <LeaveGuard isDirty={isDirty && !saving.isPending} />
      <FieldFaults faults={faultsElsewhere(faults, pointers)} isNamed />
      {children({
        spec,
        change: (fields) => setSpec((before) => ({ ...before, ...fields })),
        faultsAt: (pointer) => faultsAt(faults, pointer),
      })}
      {error !== null && faultsOf(error).length === 0 && <Problem error={error} />}
      <div className="actions">
        <button type="submit" className="primary" disabled={saving.isPending}>
          {label}
        </button>
      </div>
      <p className="form-state" role="status" data-state={isDirty ? "dirty" : "saved"}>
        {isDirty && t("agents.unsaved")}
        {!isDirty && saving.isSuccess && t("agents.saved")}
      </p>
    </form>
  );
}

interface TextFieldProps {
  label: string;
  value: string | null | undefined;
  set: (value: string) => void;
  faults: FieldFault[];
  required?: boolean;
  type?: "text" | "url" | "password" | "number" | "datetime-local";
  placeholder?: string;
}

/** A text with its label and its faults. */
export function TextField({ label, value, set, faults, type = "text", ...props }: TextFieldProps) {
  return (
    <Field label={label} faults={faults}>
      {(marks) => (
        <input
          {...marks}
          {...props}
          type={type}
          autoComplete="off"
          value={value ?? ""}
          onChange={(event) => set(event.target.value)}
        />
      )}
    </Field>
  );
}

interface SelectFieldProps<Value extends string> {
  label: string;
  value: Value;
  options: readonly { value: Value; label: string }[];
  set: (value: Value) => void;
  faults: FieldFault[];
}

export function SelectField<Value extends string>({
  label,
  value,
  options,
  set,
  faults,
}: SelectFieldProps<Value>) {
  return (
    <Field label={label} faults={faults}>
      {(marks) => (
        <select {...marks} value={value} onChange={(event) => set(event.target.value as Value)}>
          {options.map((option) => (
            <option key={option.value} value={option.value}>
              {option.label}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

export function CheckField({
  label,
  value,
  set,
}: {
  label: string;
  value: boolean;
  set: (value: boolean) => void;
}) {
  return (
    <label className="check">
      <input type="checkbox" checked={value} onChange={(event) => set(event.target.checked)} /> {label}
    </label>
  );
}
