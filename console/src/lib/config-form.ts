/** Form of an agent's `config`, from the `config_schema` of its runner. */

import { record } from "../api/errors";

export type ControlKind =
  | "text"
  | "textarea"
  | "integer"
  | "number"
  | "boolean"
  | "select"
  | "json"
  | "prompt"
  // Names of the catalogue: one model, one model with fallbacks, knowledge bases.
  | "model"
  | "embedding"
  | "rerank"
  | "models"
  | "bases";

export interface ConfigOption {
  value: string;
  label: string;
}

export interface ConfigItem {
  name: string;
  kind: ControlKind;
  label: string;
  description: string;
  isRequired: boolean;
  default: unknown;
  options: ConfigOption[];
}

const KINDS: Record<string, ControlKind> = {
  string: "text",
  text: "textarea",
  integer: "integer",
  number: "number",
  boolean: "boolean",
  "prompt-editor": "prompt",
  "llm-model-selector": "model",
  "select-llm-model": "model",
  "embedding-model-selector": "embedding",
  "rerank-model-selector": "rerank",
  "model-fallback-selector": "models",
  "knowledge-base-multi-selector": "bases",
  "select-knowledge-bases": "bases",
};

/** Items of a manifest's schema. Types without a control are edited as JSON. */
export function configItems(manifest: unknown, language: string): ConfigItem[] {
  const schema = record(manifest).config_schema;
  if (!Array.isArray(schema)) return [];
  return schema.map(record).flatMap((item) => {
    if (typeof item.name !== "string") return [];
    return [
      {
        name: item.name,
        kind: kindOf(item),
        label: localized(item.label, language) || item.name,
        description: localized(item.description, language),
        isRequired: item.required === true,
        default: item.default ?? null,
        options: optionsOf(item.options, language),
      },
    ];
  });
}

function kindOf(item: Record<string, unknown>): ControlKind {
  if (item.type === "select") return item.allow_custom === true ? "text" : "select";
  return KINDS[`${item.type}`] ?? "json";
}

function optionsOf(options: unknown, language: string): ConfigOption[] {
  if (!Array.isArray(options)) return [];
  return options.map(record).map((option) => {
    const value = `${option.name ?? option.value ?? ""}`;
    return { value, label: localized(option.label, language) || value };
  });
}

/** Text of a prompt that is one message of role `system`; null for other prompts, which are edited as JSON. */
export function promptText(value: unknown): string | null {
  if (!Array.isArray(value) || value.length !== 1) return null;
  const { role, content, ...others } = record(value[0]);
  const isPlain = role === "system" && typeof content === "string" && Object.keys(others).length === 0;
  return isPlain ? content : null;
}

/** Text of an i18n object such as `{"en_US": …, "zh_Hans": …}`, or the text itself. */
export function localized(value: unknown, language: string): string {
  if (typeof value === "string") return value;
  const texts = record(value);
  const wanted = language === "zh" ? ["zh_Hans", "zh_CN", "zh"] : ["en_US", "en"];
  const found = [...wanted, "en_US", ...Object.keys(texts)].map((key) => texts[key]);
  return found.find((text): text is string => typeof text === "string" && text !== "") ?? "";
}

/** Value of a control's text, or a fault. Empty means: the default. */
export function readControl(kind: ControlKind, text: string): { value: unknown } | { fault: string } {
  if (text === "" && kind !== "text" && kind !== "textarea" && kind !== "select") return { value: undefined };
  switch (kind) {
    case "integer":
      return /^-?\d+$/.test(text.trim()) ? { value: Number(text) } : { fault: "not an integer" };
    case "number":
      return Number.isFinite(Number(text)) ? { value: Number(text) } : { fault: "not a number" };
    case "json":
      try {
        return { value: JSON.parse(text) as unknown };
      } catch (error) {
        return { fault: error instanceof Error ? error.message : `${error}` };
      }
    default:
      return { value: text };
  }
}

/** True for what a required field does not accept: no value, an empty text or list, or an object of such values. */
function isBlank(value: unknown): boolean {
  if (value === undefined || value === null) return true;
  if (typeof value === "string") return value.trim() === "";
  if (typeof value === "object") return Object.values(value).every(isBlank);
  return false;
}

/** Required items without a value. An absent value means the default of the item. */
export function missingItems(items: ConfigItem[], config: Record<string, unknown>): ConfigItem[] {
  return items.filter((item) => item.isRequired && isBlank(config[item.name] ?? item.default));
}
