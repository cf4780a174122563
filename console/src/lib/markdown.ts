/** Code in Markdown texts. All else of a text stays as it was written. */

export interface TextBlock {
  kind: "text" | "code";
  text: string;
  /** Word after the opening fence. */
  info: string;
}

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`\n]*)$/;

/** Splits a text at its fences. A fence without an end, as in a text that streams, reaches to the end. */
export function blocksOf(text: string): TextBlock[] {
  const blocks: TextBlock[] = [];
  let lines: string[] = [];
  let open: { mark: string; info: string } | null = null;
  const flush = () => {
    const joined = lines.join("\n");
    lines = [];
    if (open !== null) blocks.push({ kind: "code", text: joined, info: open.info });
    else if (joined.trim() !== "") blocks.push({ kind: "text", text: joined, info: "" });
  };
  for (const line of text.split("\n")) {
    const [, mark = "", info = ""] = FENCE.exec(line.replace(/\r$/, "")) ?? [];
    const isEnd = open !== null && mark.startsWith(open.mark) && info.trim() === "";
    if (isEnd || (open === null && mark !== "")) {
      flush();
      open = open === null ? { mark, info: info.trim() } : null;
    } else {
      lines.push(line);
    }
  }
  flush();
  return blocks;
}

export interface TextSpan {
  kind: "text" | "code";
  text: string;
}

/** Splits a text at its code spans: equal numbers of backticks around text on one line. */
export function spansOf(text: string): TextSpan[] {
  const spans: TextSpan[] = [];
  let from = 0;
  for (const found of text.matchAll(/(?<!`)(`+)(?!`)([^\n]+?)(?<!`)\1(?!`)/g)) {
    if (found.index > from) spans.push({ kind: "text", text: text.slice(from, found.index) });
    spans.push({ kind: "code", text: found[2] ?? "" });
    from = found.index + found[0].length;
  }
  if (from < text.length) spans.push({ kind: "text", text: text.slice(from) });
  return spans;
}
