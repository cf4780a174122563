import { useId, useState } from "react";
import type { FieldFault } from "../../api/errors";
import { useText } from "../../i18n";
import { type ConfigItem, readControl } from "../../lib/config-form";
import { faultsAt, pointerTo } from "../../lib/field-faults";
import { FieldFaults, invalid } from "../../ui/field-faults";

/** Text of a value in the control of its type. */
function written(item: ConfigItem, value: unknown): string {
  if (value === undefined || value === null) return "";
  return typeof value === "string" && item.kind !== "json" ? value : JSON.stringify(value, null, 2);
}

type Config = Record<string, unknown>;

interface ConfigProps {
  items: ConfigItem[];
  config: Config;
  /** Faults that the gateway found, with pointers into the agent. */
  faults: FieldFault[];
  change: (config: Config) => void;
  setFault: (name: string, fault: string | null) => void;
  /** Names of required fields without a value. */
  missing: ReadonlySet<string>;
}

/** The fields of a runner's schema. Keys of the config that the schema lacks stay as they are. */
export function ConfigFields({ items, config, faults, change, setFault, missing }: ConfigProps) {
  const set = (name: string, value: unknown) => {
    const { [name]: _, ...others } = config;
    change(value === undefined ? others : { ...config, [name]: value });
  };
  return items.map((item) => (
    <ConfigField
      key={item.name}
      item={item}
      value={config[item.name]}
      faults={faultsAt(faults, pointerTo("config", item.name))}
      set={(value) => set(item.name, value)}
      setFault={(fault) => setFault(item.name, fault)}
      isMissing={missing.has(item.name)}
    />
  ));
}

interface FieldProps {
  item: ConfigItem;
  value: unknown;
  faults: FieldFault[];
  set: (value: unknown) => void;
  setFault: (fault: string | null) => void;
  isMissing: boolean;
}

function ConfigField({ item, value, faults, set, setFault, isMissing }: FieldProps) {
  const t = useText();
  const id = useId();
  const [text, setText] = useState(() => written(item, value));
  const [fault, setOwnFault] = useState<string | null>(null);
  const marks = invalid(`${id}-faults`, faults);
  const edit = (next: string) => {
    setText(next);
    const read = readControl(item.kind, next);
    const found = "fault" in read ? read.fault : null;
    setOwnFault(found);
    setFault(found);
    if ("value" in read) set(read.value);
  };
  return (
    <div className="field">
      <label htmlFor={id}>
        {item.label}
        {item.isRequired && " *"} <code className="faint">{item.name}</code>
      </label>
      {item.description !== "" && <p className="reason">{item.description}</p>}
      {item.kind === "boolean" ? (
        <input
          id={id}
          type="checkbox"
          {...marks}
          checked={(value ?? item.default) === true}
          onChange={(event) => set(event.target.checked)}
        />
      ) : (
        <TextControl id={id} item={item} text={text} marks={marks} edit={edit} />
      )}
      {fault !== null && <p className="problem">{fault}</p>}
      <FieldFaults
        id={`${id}-faults`}
        faults={faults}
        isNamed={faults.some(({ pointer }) => pointer !== pointerTo("config", item.name))}
      />
      {fault === null && isMissing && <p className="warning">{t("agents.required")}</p>}
    </div>
  );
}

interface TextProps {
  id: string;
  item: ConfigItem;
  text: string;
  marks: ReturnType<typeof invalid>;
  edit: (text: string) => void;
}

function TextControl({ id, item, text, marks, edit }: TextProps) {
  const placeholder = written(item, item.default);
  switch (item.kind) {
    case "select":
      return (
        <select id={id} {...marks} value={text || placeholder} onChange={(event) => edit(event.target.value)}>
          {(text || placeholder) === "" && <option value="" />}
          {item.options.map((option) => (
            <option key={option.value} value={option.value}>
              {option.label}
            </option>
          ))}
        </select>
      );
    case "json":
    case "textarea":
      return (
        <textarea
          id={id}
          {...marks}
          rows={Math.min(16, Math.max(2, (text || placeholder).split("\n").length))}
          placeholder={placeholder}
          value={text}
          spellCheck={false}
          onChange={(event) => edit(event.target.value)}
        />
      );
    default:
      return (
        <input
          id={id}
          {...marks}
          placeholder={placeholder}
          value={text}
          onChange={(event) => edit(event.target.value)}
        />
      );
  }
}
