import { useSyncExternalStore } from "react";
import { useLanguage } from "../i18n";
import { absolute, relative } from "../lib/format";

const TICK_MS = 1000;
let now = Math.floor(Date.now() / 1000);
let listeners: (() => void)[] = [];
let timer: number | undefined;

function subscribe(listener: () => void): () => void {
  listeners = [...listeners, listener];
  timer ??= window.setInterval(() => {
    now = Math.floor(Date.now() / 1000);
    for (const each of listeners) each();
  }, TICK_MS);
  return () => {
    listeners = listeners.filter((other) => other !== listener);
    if (listeners.length > 0) return;
    window.clearInterval(timer);
    timer = undefined;
  };
}

/** Epoch seconds of this browser, renewed each second by one timer for the page. */
export function useNow(): number {
  return useSyncExternalStore(subscribe, () => now);
}

/** Relative time with the absolute one on hover. `at` is in epoch seconds. */
export function When({ at }: { at: number | null | undefined }) {
  const language = useLanguage();
  const seconds = useNow();
  if (at === null || at === undefined) return <span className="faint">–</span>;
  return (
    <time dateTime={new Date(at * 1000).toISOString()} title={absolute(at, language)}>
      {relative(at, seconds, language)}
    </time>
  );
}
