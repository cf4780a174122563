/** Keys of the page. `?` lists those of the current view. */

import { useEffect, useRef, useState } from "react";
import { type TextKey, useText } from "../i18n";
import { Dialog } from "./dialog";

export interface Binding {
  key: string;
  what: TextKey;
  run: () => void;
}

let bindings: Binding[] = [];

/** Binds keys while the component is shown. */
export function useKeys(wanted: Binding[]): void {
  const latest = useRef(wanted);
  latest.current = wanted;
  const names = wanted.map((binding) => binding.key).join(" ");
  useEffect(() => {
    const added = names
      .split(" ")
      .filter((key) => key !== "")
      .map((key): Binding => {
        const find = () => latest.current.find((binding) => binding.key === key);
        return { key, what: find()?.what ?? "keys.title", run: () => find()?.run() };
      });
    bindings = [...bindings, ...added];
    return () => {
      bindings = bindings.filter((binding) => !added.includes(binding));
    };
  }, [names]);
}

function isTyping(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName);
}

export function KeyHelp() {
  const t = useText();
  const [shown, setShown] = useState(false);
  useKeys([{ key: "?", what: "keys.help", run: () => setShown(true) }]);
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
      if (document.querySelector("dialog[open]") !== null) return;
      const found = bindings.findLast((binding) => binding.key === event.key);
      if (found === undefined) return;
      event.preventDefault();
      found.run();
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, []);
  if (!shown) return null;
  return (
    <Dialog title={t("keys.title")} close={() => setShown(false)}>
      <dl className="keys">
        {bindings.map((binding) => (
          <div key={binding.key}>
            <dt>
              <kbd>{binding.key}</kbd>
            </dt>
            <dd>{t(binding.what)}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
