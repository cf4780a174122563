/** Small parts of each view. */

import { type ReactNode, useState } from "react";
import { type TextKey, useText } from "../i18n";
import { pretty, safeLink } from "../lib/format";

export function Loading({ what }: { what: TextKey }) {
  const t = useText();
  return (
    <p className="loading" role="status">
      {t("loading", { what: t(what) })}
    </p>
  );
}

/** An empty list, and the command that fills it. */
export function Empty({ text, command }: { text: TextKey; command?: string }) {
  const t = useText();
  return (
    <div className="empty">
      <p>{t(text)}</p>
      {command !== undefined && (
        <div className="command">
          <pre>{command}</pre>
          <Copy text={command} />
        </div>
      )}
    </div>
  );
}

const CONFIRMED_MS = 1500;

/** The clipboard of the browser exists on pages with TLS and on localhost only. */
async function writeClipboard(text: string): Promise<void> {
  if (navigator.clipboard !== undefined) return navigator.clipboard.writeText(text);
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

export function Copy({ text, label = "copy" }: { text: string; label?: TextKey }) {
  const t = useText();
  const [done, setDone] = useState(false);
  const copy = async () => {
    await writeClipboard(text);
    setDone(true);
    setTimeout(() => setDone(false), CONFIRMED_MS);
  };
  return (
    <button type="button" className="quiet" onClick={() => void copy()}>
      {done ? t("copied") : t(label)}
    </button>
  );
}

export function Json({ value }: { value: unknown }) {
  const text = pretty(value);
  return (
    <div className="json">
      <Copy text={text} />
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolling region must be reachable by keyboard */}
      <pre tabIndex={0}>{text}</pre>
    </div>
  );
}

/** A wide table that scrolls sideways, also by keyboard. */
export function Scroll({ children }: { children: ReactNode }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolling region must be reachable by keyboard
    <div className="scroll" tabIndex={0}>
      {children}
    </div>
  );
}

export interface Fact {
  label: string;
  value: ReactNode;
}

/** Labels and values; an absent value hides its label. */
export function Facts({ facts }: { facts: Fact[] }) {
  const shown = facts.filter(({ value }) => value !== null && value !== undefined && value !== "");
  return (
    <dl className="facts">
      {shown.map(({ label, value }) => (
        <div key={label}>
          <dt>{label}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Badge({ tone, children }: { tone: string; children: ReactNode }) {
  return <span className={`badge ${tone}`}>{children}</span>;
}

/** A link to a web address; other schemes are shown as text. */
export function WebLink({ address }: { address: string }) {
  const href = safeLink(address);
  if (href === null) return <span>{address}</span>;
  return (
    <a href={href} rel="noreferrer noopener" target="_blank">
      {address}
    </a>
  );
}
