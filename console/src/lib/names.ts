/** Names that an agent chooses from the catalogue. */

/** `"*"` chooses every entry, also later ones. */
export type Names = string[] | "*";

export interface NameOption {
  name: string;
  note: string;
}

/** Entries of a list; a longer one is narrowed by the search. */
export const MAX_SHOWN = 200;

/** Chosen names without an option. Without options no name can be checked. */
export function unknownNames(chosen: Names, options: NameOption[] | undefined): string[] {
  if (chosen === "*" || options === undefined) return [];
  const offered = new Set(options.map(({ name }) => name));
  return chosen.filter((name) => !offered.has(name));
}

export function toggled(chosen: string[], name: string): string[] {
  return chosen.includes(name) ? chosen.filter((other) => other !== name) : [...chosen, name];
}

/** Rows of a picker: chosen names without an option first, then the options, each if the search matches it. */
export function pickerRows(chosen: string[], options: NameOption[], search: string): NameOption[] {
  const words = search.toLowerCase().split(/\s+/);
  const rows = [...unknownNames(chosen, options).map((name) => ({ name, note: "" })), ...options];
  return rows.filter(({ name, note }) => {
    const text = `${name} ${note}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

/** The texts of a stored list, or of a single one. */
export function textsOf(value: unknown): string[] {
  const list = Array.isArray(value) ? value : [value];
  return list.filter((item): item is string => typeof item === "string" && !isNone(item));
}

/** True for the ways in which forms write that nothing is chosen. */
export function isNone(name: string): boolean {
  return ["", "__none__", "__none"].includes(name);
}
