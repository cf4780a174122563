import { linkParts } from "../lib/links";

/** Text of users, runners and models. Markup in it is text; web addresses are links. */
export function Text({ children }: { children: string }) {
  return (
    <p className="text">
      {linkParts(children).map(({ text, href }, index) =>
        href === null ? (
          text
        ) : (
          // biome-ignore lint/suspicious/noArrayIndexKey: parts have no identity
          <a key={index} href={href} rel="noreferrer noopener" target="_blank">
            {text}
          </a>
        ),
      )}
    </p>
  );
}
