import { type FormEvent, useRef } from "react";
import { useText } from "../i18n";
import { localTime, secondsOf } from "../lib/filters";
import { useKeys } from "./keys";

export interface FilterField<Name extends string> {
  name: Name;
  label: string;
  /** A time is in epoch seconds. */
  kind: "text" | "number" | "time";
}

interface FormProps<Name extends string> {
  fields: FilterField<Name>[];
  values: { [name in Name]?: string | undefined };
  /** Gets a text for each field; empty ones are no filter. */
  apply: (values: { [name in Name]?: string }) => void;
}

/** Filters without a control of their own. `/` opens them. */
export function FilterForm<Name extends string>({ fields, values, apply }: FormProps<Name>) {
  const t = useText();
  const element = useRef<HTMLDetailsElement>(null);
  useKeys([
    {
      key: "/",
      what: "keys.filter",
      run: () => {
        if (element.current !== null) element.current.open = true;
        element.current?.querySelector("input")?.focus();
      },
    },
  ]);
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const given = new FormData(event.currentTarget);
    const typed = fields.map(({ name, kind }) => {
      const text = `${given.get(name) ?? ""}`;
      return [name, kind === "time" ? secondsOf(text) : text];
    });
    apply(Object.fromEntries(typed) as { [name in Name]?: string });
  };
  return (
    <details ref={element} open={fields.some(({ name }) => values[name] !== undefined)}>
      <summary>{t("runs.moreFilters")}</summary>
      {/* The key renews the fields after the back button. */}
      <form onSubmit={submit} key={JSON.stringify(values)}>
        {fields.map((field) => (
          <label key={field.name} htmlFor={`filter-${field.name}`}>
            {field.label}
            <FilterInput field={field} value={values[field.name] ?? ""} />
          </label>
        ))}
        <button type="submit">{t("runs.apply")}</button>
      </form>
    </details>
  );
}

function FilterInput({ field: { name, kind }, value }: { field: FilterField<string>; value: string }) {
  const common = { id: `filter-${name}`, name };
  switch (kind) {
    case "time":
      return <input {...common} type="datetime-local" defaultValue={localTime(value)} />;
    case "number":
      return <input {...common} type="number" min={0} step="any" defaultValue={value} />;
    default:
      return <input {...common} defaultValue={value} autoComplete="off" spellCheck={false} />;
  }
}
