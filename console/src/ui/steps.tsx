import { useSyncExternalStore } from "react";
import { useText } from "../i18n";
import { readChoice, type StepChoice, type StepKind } from "../lib/steps";

const ITEM = "runnel.steps";
let listeners: (() => void)[] = [];

function subscribe(listener: () => void): () => void {
  listeners = [...listeners, listener];
  return () => {
    listeners = listeners.filter((other) => other !== listener);
  };
}

function setChoice(choice: StepChoice): void {
  localStorage.setItem(ITEM, JSON.stringify(choice));
  for (const listener of listeners) listener();
}

/** The steps that this browser shows, and how to change them. */
export function useSteps(): [StepChoice, (choice: StepChoice) => void] {
  const stored = useSyncExternalStore(subscribe, () => localStorage.getItem(ITEM));
  return [readChoice(stored), setChoice];
}

/** Chooses the kinds of steps that are shown. */
export function KindChoice({ kinds }: { kinds: readonly StepKind[] }) {
  const t = useText();
  const [choice, set] = useSteps();
  const hidden = kinds.filter((kind) => choice.hidden.includes(kind));
  return (
    <details className="kinds">
      <summary>
        {hidden.length === 0
          ? t("steps.kinds")
          : t("steps.hidden", { kinds: hidden.map((kind) => t(`steps.${kind}`)).join(", ") })}
      </summary>
      <div className="quick">
        {kinds.map((kind) => (
          <label key={kind}>
            <input
              type="checkbox"
              checked={!choice.hidden.includes(kind)}
              onChange={(event) => {
                const others = choice.hidden.filter((other) => other !== kind);
                set({ ...choice, hidden: event.target.checked ? others : [...others, kind] });
              }}
            />{" "}
            {t(`steps.${kind}`)}
          </label>
        ))}
        <span className="faint">{t("steps.failures")}</span>
      </div>
    </details>
  );
}
