import { useId, useState } from "react";
import type { FieldFault } from "../../api/errors";
import { useText } from "../../i18n";
import type { NameOption } from "../../lib/names";
import { TOOL_RULES, type ToolRule, type ToolRules, withoutRule } from "../../lib/tool-rules";
import { FieldFaults, invalid } from "../../ui/field-faults";

interface RulesProps {
  rules: ToolRules;
  set: (rules: ToolRules) => void;
  options: NameOption[] | undefined;
  faults: FieldFault[];
  hint: string | undefined;
}

/** A rule for each tool or pattern of tools. A list of names would lose those that ask or deny. */
export function ToolRuleFields({ rules, set, options, faults, hint }: RulesProps) {
  const t = useText();
  const id = useId();
  const [typed, setTyped] = useState("");
  const name = typed.trim();
  const isNew = name !== "" && !Object.hasOwn(rules, name);
  const add = () => {
    if (!isNew) return;
    set({ ...rules, [name]: "ask" });
    setTyped("");
  };
  return (
    <fieldset className="picker">
      <legend>{t("policy.tools")}</legend>
      {hint !== undefined && <p className="reason">{hint}</p>}
      {Object.entries(rules).map(([tool, rule]) => (
        <div className="quick" key={tool}>
          <select
            aria-label={tool}
            value={rule}
            onChange={(event) => set({ ...rules, [tool]: event.target.value as ToolRule })}
          >
            {TOOL_RULES.map((each) => (
              <option key={each} value={each}>
                {t(`toolRule.${each}`)}
              </option>
            ))}
          </select>
          <code>{tool}</code>
          <button
            type="button"
            className="quiet"
            aria-label={t("toolRule.remove", { tool })}
            onClick={() => set(withoutRule(rules, tool))}
          >
            ×
          </button>
        </div>
      ))}
      <div className="quick">
        <input
          type="search"
          {...invalid(`${id}-faults`, faults)}
          aria-label={t("picker.name", { label: t("policy.tools") })}
          placeholder={t("approvals.toolPattern")}
          autoComplete="off"
          spellCheck={false}
          list={`${id}-names`}
          value={typed}
          onChange={(event) => setTyped(event.target.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter") return;
            // The form is not to be sent.
            event.preventDefault();
            add();
          }}
        />
        <datalist id={`${id}-names`}>
          {options?.map((option) => (
            <option key={option.name} value={option.name} />
          ))}
        </datalist>
        <button type="button" disabled={!isNew} onClick={add}>
          {t("toolRule.add")}
        </button>
      </div>
      <FieldFaults id={`${id}-faults`} faults={faults} isNamed />
    </fieldset>
  );
}
