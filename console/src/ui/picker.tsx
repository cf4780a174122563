import { useId, useState } from "react";
import type { FieldFault } from "../api/errors";
import { useText } from "../i18n";
import { MAX_SHOWN, type NameOption, type Names, pickerRows, toggled, unknownNames } from "../lib/names";
import { FieldFaults, invalid } from "./field-faults";
import { Badge } from "./parts";

interface PickerProps {
  label: string;
  chosen: Names;
  set: (names: Names) => void;
  /** Undefined if the gateway does not list them: each name is then accepted. */
  options: NameOption[] | undefined;
  /** True if `"*"` may be chosen. */
  hasAll?: boolean;
  faults: FieldFault[];
  hint?: string | undefined;
}

/** Chooses names from a list with a search. Names that are not in the list can be added, and are marked. */
export function Picker({ label, chosen, set, options, hasAll, faults, hint }: PickerProps) {
  const t = useText();
  const id = useId();
  return (
    <fieldset className="picker">
      <legend>{label}</legend>
      {hint !== undefined && <p className="reason">{hint}</p>}
      {hasAll && (
        <label className="check">
          <input
            type="checkbox"
            checked={chosen === "*"}
            onChange={(event) => set(event.target.checked ? "*" : [])}
          />{" "}
          {t("picker.all")}
        </label>
      )}
      {chosen !== "*" && (
        <Choice
          label={label}
          chosen={chosen}
          set={set}
          options={options}
          marks={invalid(`${id}-faults`, faults)}
        />
      )}
      <FieldFaults id={`${id}-faults`} faults={faults} isNamed />
    </fieldset>
  );
}

interface ChoiceProps {
  label: string;
  chosen: string[];
  set: (names: string[]) => void;
  options: NameOption[] | undefined;
  marks: ReturnType<typeof invalid>;
}

function Choice({ label, chosen, set, options, marks }: ChoiceProps) {
  const t = useText();
  const [search, setSearch] = useState("");
  const name = search.trim();
  const rows = pickerRows(chosen, options ?? [], name);
  const unknown = new Set(unknownNames(chosen, options));
  const isNew = name !== "" && !chosen.includes(name) && !options?.some((option) => option.name === name);
  const add = () => {
    set([...chosen, name]);
    setSearch("");
  };
  return (
    <>
      <div className="quick">
        <input
          type="search"
          {...marks}
          aria-label={t(options === undefined ? "picker.name" : "picker.search", { label })}
          placeholder={t(options === undefined ? "picker.nameHint" : "picker.searchHint")}
          autoComplete="off"
          spellCheck={false}
          value={search}
          onChange={(event) => setSearch(event.target.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter") return;
            // The form is not to be sent.
            event.preventDefault();
            const [only] = rows;
            if (rows.length === 1 && only !== undefined) set(toggled(chosen, only.name));
            else if (isNew) add();
          }}
        />
        {isNew && (
          <button type="button" onClick={add}>
            {t("picker.add", { name })}
          </button>
        )}
        <span className="faint" aria-live="polite">
          {t("picker.chosen", { n: chosen.length })}
        </span>
      </div>
      {rows.length > 0 && (
        <div className="options">
          {rows.slice(0, MAX_SHOWN).map((row) => (
            <label key={row.name}>
              <input
                type="checkbox"
                checked={chosen.includes(row.name)}
                onChange={() => set(toggled(chosen, row.name))}
              />
              <span>
                {row.name} {unknown.has(row.name) && <Badge tone="bad">{t("picker.unknown")}</Badge>}{" "}
                <span className="faint">{row.note}</span>
              </span>
            </label>
          ))}
        </div>
      )}
      {rows.length > MAX_SHOWN && <p className="faint">{t("picker.cut", { n: MAX_SHOWN })}</p>}
    </>
  );
}

interface SelectProps {
  id: string;
  value: string;
  set: (name: string) => void;
  options: NameOption[] | undefined;
  marks: ReturnType<typeof invalid>;
}

/** Chooses one name or none. A name without an option is marked. */
export function NameSelect({ id, value, set, options, marks }: SelectProps) {
  const t = useText();
  const [unknown] = unknownNames([value].filter(Boolean), options ?? []);
  return (
    <select id={id} {...marks} value={value} onChange={(event) => set(event.target.value)}>
      <option value="">{t("picker.none")}</option>
      {unknown !== undefined && (
        <option value={unknown}>
          {options === undefined ? unknown : `${unknown} – ${t("picker.unknown")}`}
        </option>
      )}
      {options?.map(({ name, note }) => (
        <option key={name} value={name}>
          {note === "" ? name : `${name} (${note})`}
        </option>
      ))}
    </select>
  );
}
