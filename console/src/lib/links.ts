import { safeLink } from "./format";

export interface TextPart {
  text: string;
  /** Web address that the text links to, or null. */
  href: string | null;
}

/** Splits a text at its web addresses. Punctuation at the end of an address belongs to the sentence. */
export function linkParts(text: string): TextPart[] {
  const parts: TextPart[] = [];
  let from = 0;
  for (const found of text.matchAll(/https?:\/\/[^\s<>"'`)\]}]+/g)) {
    const address = found[0].replace(/[.,;:!?]+$/, "");
    const href = safeLink(address);
    if (href === null) continue;
    if (found.index > from) parts.push({ text: text.slice(from, found.index), href: null });
    parts.push({ text: address, href });
    from = found.index + address.length;
  }
  if (from < text.length) parts.push({ text: text.slice(from), href: null });
  return parts;
}
