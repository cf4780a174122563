import { useId } from "react";
import type { FieldFault } from "../api/errors";
import { useText } from "../i18n";
import { writeOut } from "../lib/answer-form";
import { readRules, ruleText } from "../lib/approvals";
import { FieldFaults, invalid } from "./field-faults";

interface ListProps {
  rules: Record<string, unknown>;
  /** Maximum rules and characters of one; without it all are shown. */
  max?: { rules: number; characters: number };
}

/** Rules for arguments, in words. */
export function RuleList({ rules, max }: ListProps) {
  const t = useText();
  const all = Object.entries(rules);
  if (all.length === 0) return <p className="reason">{t("approvals.noArguments")}</p>;
  const shown = all.slice(0, max?.rules);
  return (
    <ul className="plain rules">
      {shown.map(([pointer, rule]) => (
        <li key={pointer}>
          {pointer === "" ? t("approvals.allArguments") : <code>{writeOut(pointer)}</code>}{" "}
          {cut(ruleText(t, rule), max?.characters)}
        </li>
      ))}
      {all.length > shown.length && <li>{t("approvals.moreRules", { n: all.length - shown.length })}</li>}
    </ul>
  );
}

function cut(text: string, characters = text.length): string {
  return text.length > characters ? `${text.slice(0, characters)}…` : text;
}

interface FieldProps {
  label: string;
  value: string;
  set: (value: string) => void;
  faults: FieldFault[];
  /** Pointer of the field. Faults at others are those of single rules. */
  pointer: string;
}

/** Rules as JSON, with what they cover in words below. */
export function RulesField({ label, value, set, faults, pointer }: FieldProps) {
  const t = useText();
  const id = useId();
  const rules = readRules(value);
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      <textarea
        id={id}
        rows={Math.min(12, value.split("\n").length + 1)}
        spellCheck={false}
        value={value}
        onChange={(event) => set(event.target.value)}
        {...invalid(`${id}-faults`, faults)}
      />
      <FieldFaults
        id={`${id}-faults`}
        faults={faults}
        isNamed={faults.some((fault) => fault.pointer !== pointer)}
      />
      {rules === null ? <p className="reason">{t("approvals.notRules")}</p> : <RuleList rules={rules} />}
    </div>
  );
}
