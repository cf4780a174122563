/** Texts of the page in the language of the reader. */

import { useSyncExternalStore } from "react";
import { en } from "./en";
import { zh } from "./zh";

export type TextKey = keyof typeof en;
export type Language = "en" | "zh";
export type Values = Record<string, string | number>;
export type Translate = (key: TextKey, values?: Values) => string;

const ITEM = "runnel.language";
const tables: Record<Language, Record<TextKey, string>> = { en, zh };
let listeners: (() => void)[] = [];

/** Text of a key with `{name}` replaced by values. */
export function translate(language: Language, key: TextKey, values: Values = {}): string {
  return tables[language][key].replace(/\{(\w+)\}/g, (found, name: string) => `${values[name] ?? found}`);
}

export function languageOf(stored: string | null, browser: string): Language {
  if (stored === "en" || stored === "zh") return stored;
  return browser.toLowerCase().startsWith("zh") ? "zh" : "en";
}

export function currentLanguage(): Language {
  return languageOf(localStorage.getItem(ITEM), navigator.language);
}

export function setLanguage(language: Language): void {
  localStorage.setItem(ITEM, language);
  for (const listener of listeners) listener();
}

function subscribe(listener: () => void): () => void {
  listeners = [...listeners, listener];
  return () => {
    listeners = listeners.filter((other) => other !== listener);
  };
}

export function useLanguage(): Language {
  return useSyncExternalStore(subscribe, currentLanguage);
}

export function useText(): Translate {
  const language = useLanguage();
  return (key, values) => translate(language, key, values);
}
