import { useId, useState } from "react";
import type { FieldFault } from "../../api/errors";
import { useText } from "../../i18n";
import { chosenIn, modelChoice, type OfferedNames, optionsFor } from "../../lib/catalogue";
import { type ConfigItem, promptText, readControl } from "../../lib/config-form";
import { faultsAt, pointerTo } from "../../lib/field-faults";
import { FieldFaults, invalid } from "../../ui/field-faults";
import { NameSelect, Picker } from "../../ui/picker";

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
  offered: OfferedNames;
}

/** The fields of a runner's schema. Keys of the config that the schema lacks stay as they are. */
export function ConfigFields({ items, config, faults, change, setFault, missing, offered }: ConfigProps) {
  const set = (name: string, value: unknown) => {
    const { [name]: _, ...others } = config;
    change(value === undefined ? others : { ...config, [name]: value });
  };
  return items.map((item) => (
    <ConfigField
      key={item.name}
      item={item}
      config={config}
      offered={offered}
      faults={faultsAt(faults, pointerTo("config", item.name))}
      set={(value) => set(item.name, value)}
      setFault={(fault) => setFault(item.name, fault)}
      isMissing={missing.has(item.name)}
    />
  ));
}

interface FieldProps {
  item: ConfigItem;
  config: Config;
  offered: OfferedNames;
  faults: FieldFault[];
  set: (value: unknown) => void;
  setFault: (fault: string | null) => void;
  isMissing: boolean;
}

function ConfigField(props: FieldProps) {
  const { item, faults, isMissing } = props;
  const t = useText();
  const id = useId();
  const [fault, setFault] = useState<string | null>(null);
  const marks = invalid(`${id}-faults`, faults);
  const report = (found: string | null) => {
    setFault(found);
    props.setFault(found);
  };
  return (
    <div className="field">
      {item.kind !== "bases" && (
        <label htmlFor={id}>
          {item.label}
          {item.isRequired && " *"} <code className="faint">{item.name}</code>
        </label>
      )}
      {item.kind !== "bases" && item.description !== "" && <p className="reason">{item.description}</p>}
      <Control {...props} id={id} marks={marks} setFault={report} />
      {fault !== null && <p className="problem">{fault}</p>}
      <FieldFaults
        id={`${id}-faults`}
        faults={item.kind === "bases" ? [] : faults}
        isNamed={faults.some(({ pointer }) => pointer !== pointerTo("config", item.name))}
      />
      {fault === null && isMissing && <p className="warning">{t("agents.required")}</p>}
    </div>
  );
}

interface ControlProps extends FieldProps {
  id: string;
  marks: ReturnType<typeof invalid>;
}

function Control({ id, item, config, offered, faults, marks, set, setFault }: ControlProps) {
  const value = config[item.name];
  switch (item.kind) {
    case "boolean":
      return (
        <input
          id={id}
          type="checkbox"
          {...marks}
          checked={(value ?? item.default) === true}
          onChange={(event) => set(event.target.checked)}
        />
      );
    case "model":
    case "embedding":
    case "rerank": {
      const [chosen = ""] = chosenIn(item, config);
      return (
        <NameSelect id={id} marks={marks} options={optionsFor(item, offered)} value={chosen} set={set} />
      );
    }
    case "models":
      return <ModelWithFallbacks {...{ id, item, config, offered, marks, set }} />;
    case "bases":
      return (
        <Picker
          label={item.isRequired ? `${item.label} *` : item.label}
          chosen={chosenIn(item, config)}
          set={set}
          options={optionsFor(item, offered)}
          faults={faults}
          hint={item.description || undefined}
        />
      );
    default:
      return <TextControl id={id} item={item} value={value} marks={marks} set={set} setFault={setFault} />;
  }
}

function ModelWithFallbacks({
  id,
  item,
  config,
  offered,
  marks,
  set,
}: Omit<ControlProps, "setFault" | "faults" | "isMissing">) {
  const t = useText();
  const { primary, fallbacks } = modelChoice(config[item.name] ?? item.default);
  const options = optionsFor(item, offered);
  return (
    <>
      <NameSelect
        id={id}
        marks={marks}
        options={options}
        value={primary}
        set={(name) => set({ primary: name, fallbacks })}
      />
      <Picker
        label={t("agents.fallbacks")}
        chosen={fallbacks}
        set={(names) => set({ primary, fallbacks: names })}
        options={options?.filter(({ name }) => name !== primary)}
        faults={[]}
        hint={fallbacks.length > 1 ? `${t("agents.order")} ${fallbacks.join(" → ")}` : undefined}
      />
    </>
  );
}

interface TextProps {
  id: string;
  item: ConfigItem;
  value: unknown;
  marks: ReturnType<typeof invalid>;
  set: (value: unknown) => void;
  setFault: (fault: string | null) => void;
}

function TextControl({ id, item, value, marks, set, setFault }: TextProps) {
  const prompt = item.kind === "prompt" ? promptText(value ?? item.default) : null;
  const [isPrompt] = useState(prompt !== null);
  const [text, setText] = useState(() => prompt ?? written(item, value));
  const placeholder = written(item, item.default);
  const edit = (next: string) => {
    setText(next);
    if (isPrompt) return set([{ role: "system", content: next }]);
    const read = readControl(item.kind === "prompt" ? "json" : item.kind, next);
    setFault("fault" in read ? read.fault : null);
    if ("value" in read) set(read.value);
  };
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
    case "prompt":
    case "json":
    case "textarea":
      return (
        <textarea
          id={id}
          {...marks}
          rows={Math.min(16, Math.max(2, (text || placeholder).split("\n").length))}
          placeholder={isPrompt ? undefined : placeholder}
          value={text}
          spellCheck={isPrompt}
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
