/** Sources, as the views show and change them. */

import type { Schema } from "../api/client";

type Scheme = Schema<"SourceScheme">;
type SourceSpec = Schema<"SourceSpec">;

export const SCHEMES = [
  "standard_webhooks",
  "github",
  "slack",
  "stripe",
  "feishu",
  "dingtalk",
  "wecom",
  "hmac",
  "none",
] as const satisfies Scheme[];

/** Schemes whose secret the receiver may choose: the gateway generates one. */
const GENERATED: readonly Scheme[] = ["standard_webhooks", "github", "hmac", "none"];

export function generatesSecret(scheme: Scheme): boolean {
  return GENERATED.includes(scheme);
}

/** The settings with another scheme. Only `hmac` has a header of its own. */
export function withScheme(spec: SourceSpec, scheme: Scheme): SourceSpec {
  const { header, prefix, encoding, ...others } = spec;
  return scheme === "hmac" ? { ...spec, scheme } : { ...others, scheme };
}

/** Address for the sender. With the scheme `none` the secret is its last part. */
export function senderAddress(origin: string, path: string, secretPart?: string): string {
  return `${origin}${path}${secretPart === undefined ? "" : `/${secretPart}`}`;
}

/** Headers of lines such as `X-GitHub-Event: issues`, or the first line that is none. */
export function readHeaders(text: string): { headers: Record<string, string> } | { line: string } {
  const headers: Record<string, string> = {};
  for (const line of text.split("\n").map((line) => line.trim())) {
    if (line === "") continue;
    const at = line.indexOf(":");
    if (at < 1) return { line };
    headers[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return { headers };
}
