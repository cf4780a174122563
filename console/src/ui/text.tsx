import { linkParts } from "../lib/links";
import { blocksOf, spansOf } from "../lib/markdown";

/** Text of users, runners and models. Markup in it is text; code is set as code, web addresses are links. */
export function Text({ children }: { children: string }) {
  return blocksOf(children).map(({ kind, text, info }, index) =>
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
