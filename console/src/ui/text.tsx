import { useState } from "react";
import { useText } from "../i18n";
import { linkParts } from "../lib/links";
import { blocksOf, spansOf } from "../lib/markdown";

/** Characters of a text that are shown at once. The layout of a million takes a browser half a second. */
const SHOWN = 50_000;

/**
 * Text of users, runners and models. Markup in it is text; code is set as code, web addresses are links. A long text
 * begins cut: at its end, or at its beginning while it grows.
 */
export function Text({ children, isGrowing = false }: { children: string; isGrowing?: boolean }) {
  const t = useText();
  const [isFull, setFull] = useState(false);
  if (isFull || children.length <= SHOWN) return <Blocks text={children} />;
  return (
    <>
      <Blocks text={isGrowing ? children.slice(-SHOWN) : children.slice(0, SHOWN)} />
      <button type="button" onClick={() => setFull(true)}>
        {t("text.showAll", { n: children.length })}
      </button>
    </>
  );
}

function Blocks({ text }: { text: string }) {
  return blocksOf(text).map(({ kind, text, info }, index) =>
    kind === "code" ? (
      // biome-ignore lint/suspicious/noArrayIndexKey: blocks have no identity
      <figure className="code" key={index}>
        {info !== "" && <figcaption>{info}</figcaption>}
        <pre>{text}</pre>
      </figure>
    ) : (
      // biome-ignore lint/suspicious/noArrayIndexKey: blocks have no identity
      <p className="text" key={index}>
        {spansOf(text).map((span, at) =>
          // biome-ignore lint/suspicious/noArrayIndexKey: spans have no identity
          span.kind === "code" ? <code key={at}>{span.text}</code> : <Linked key={at} text={span.text} />,
        )}
      </p>
    ),
  );
}

function Linked({ text: content }: { text: string }) {
  return linkParts(content).map(({ text, href }, index) =>
    href === null ? (
      text
    ) : (
      // biome-ignore lint/suspicious/noArrayIndexKey: parts have no identity
      <a key={index} href={href} rel="noreferrer noopener" target="_blank">
        {text}
      </a>
    ),
  );
}
