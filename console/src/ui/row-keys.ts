import { type RefObject, useRef } from "react";
import { useKeys } from "./keys";

/** Moves the focus to the next or previous row of a table. Returns the reference of its body. */
export function useRowKeys(): RefObject<HTMLTableSectionElement | null> {
  const rows = useRef<HTMLTableSectionElement>(null);
  const move = (by: number) => {
    const links = [...(rows.current?.querySelectorAll<HTMLElement>("a.row") ?? [])];
    const current = links.indexOf(document.activeElement as HTMLElement);
    links[Math.max(0, Math.min(links.length - 1, current + by))]?.focus();
  };
  useKeys([
    { key: "j", what: "keys.nextRow", run: () => move(1) },
    { key: "k", what: "keys.previousRow", run: () => move(-1) },
  ]);
  return rows;
}
