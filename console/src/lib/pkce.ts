/** Sign-in by the authorization code flow with PKCE (RFC 7636, `S256`): its parts without network and storage. */

import { record } from "../api/errors";
import type { TextKey, Values } from "../i18n";

/** The provider of `auth.oidc`, with a public client for this page. */
export interface Provider {
  issuer: string;
  /** Host of the issuer, as its name on the page. */
  host: string;
  clientId: string;
  scope: string;
  authorization: string;
  token: string;
}

/** A sign-in that has left for the provider. */
export interface PendingSignIn {
  state: string;
  nonce: string;
  verifier: string;
  /** Path of the view that the person wanted. */
  path: string;
}

/** A refused sign-in, as a text of the page that tells what to do next. */
export class SignInProblem extends Error {
  constructor(
    readonly key: TextKey,
    readonly values: Values = {},
  ) {
    super(key);
    this.name = "SignInProblem";
  }
}

/** The provider in an answer of `GET /v1/sign-in`. Null: it has no code flow for this page. */
export function providerOf(settings: {
  issuer: string;
  client_id?: string | null;
  scope: string;
  authorization_endpoint?: string | null;
  token_endpoint?: string | null;
}): Provider | null {
  const { issuer, client_id, scope, authorization_endpoint, token_endpoint } = settings;
  if (!client_id || !isWeb(authorization_endpoint) || !isWeb(token_endpoint)) return null;
  return {
    issuer,
    host: new URL(issuer).host,
    clientId: client_id,
    scope,
    authorization: authorization_endpoint,
    token: token_endpoint,
  };
}

/** The page goes to this address: one such as `javascript:` would run in it. */
function isWeb(address: string | null | undefined): address is string {
  return /^https?:\/\//.test(address ?? "");
}

/** 256 random bits as 43 letters, the shortest verifier of RFC 7636. */
export function randomText(): string {
  return base64url(crypto.getRandomValues(new Uint8Array(32)));
}

export function base64url(bytes: Uint8Array): string {
  const text = btoa(String.fromCharCode(...bytes));
  return text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** The challenge of a verifier, by `S256`. */
export async function challengeOf(verifier: string): Promise<string> {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier));
  return base64url(new Uint8Array(digest));
}

/** Address at which the provider signs the person in. */
export async function authorizationAddress(
  provider: Provider,
  pending: PendingSignIn,
  redirectUri: string,
): Promise<string> {
  const address = new URL(provider.authorization);
  const parameters = {
    response_type: "code",
    client_id: provider.clientId,
    redirect_uri: redirectUri,
    scope: provider.scope,
    state: pending.state,
    nonce: pending.nonce,
    code_challenge: await challengeOf(pending.verifier),
    code_challenge_method: "S256",
  };
  for (const [name, value] of Object.entries(parameters)) address.searchParams.set(name, value);
  return address.href;
}

/** The stored sign-in. Null: there is none. */
export function readPending(stored: string | null): PendingSignIn | null {
  const { state, nonce, verifier, path } = record(parsed(stored ?? ""));
  const texts = [state, nonce, verifier, path];
  if (!texts.every((text) => typeof text === "string" && text !== "")) return null;
  return { state, nonce, verifier, path } as PendingSignIn;
}

/** True if the answer is of this sign-in. Nothing else of another answer may be used or shown: a link can bring it. */
export function isOwn(answer: URLSearchParams, pending: PendingSignIn | null): pending is PendingSignIn {
  return pending !== null && answer.get("state") === pending.state;
}

/** The code in an answer of the provider. Throws a [`SignInProblem`]. */
export function codeOf(answer: URLSearchParams, provider: Provider, redirectUri: string): string {
  // RFC 9207: the answer of another provider must not get to this one.
  const issuer = answer.get("iss");
  if (issuer !== null && issuer !== provider.issuer)
    throw new SignInProblem("signIn.otherIssuer", { host: provider.host });
  const code = answer.get("code");
  if (code === null || answer.has("error")) throw refusal(provider, Object.fromEntries(answer), redirectUri);
  return code;
}

/** Errors of OAuth and OpenID Connect that pass by themselves. */
const LATER = ["server_error", "temporarily_unavailable"];
/** Those of the registration at the provider, or of the settings. */
const SETTINGS = [
  "invalid_client",
  "invalid_request",
  "invalid_scope",
  "unauthorized_client",
  "unsupported_grant_type",
  "unsupported_response_type",
];

/** The problem of an error of the provider: `error` and `error_description` (RFC 6749). */
export function refusal(provider: Provider, answer: unknown, redirectUri: string): SignInProblem {
  const { error, error_description } = record(answer);
  const texts = [error_description, error].filter((text) => typeof text === "string" && text !== "");
  // The text of the page goes on after the reason.
  const reason = `${texts[0] ?? "-"}`.replace(/\.$/, "");
  const values = { host: provider.host, reason, uri: redirectUri };
  if (LATER.includes(`${error}`)) return new SignInProblem("signIn.later", values);
  if (SETTINGS.includes(`${error}`)) return new SignInProblem("signIn.settings", values);
  return new SignInProblem("signIn.refused", values);
}

/** The ID token in an answer of the token endpoint, if it is of this sign-in. The gateway checks its signature. */
export function tokenOf(answer: unknown, pending: PendingSignIn, provider: Provider): string {
  const token = record(answer).id_token;
  if (typeof token !== "string") throw new SignInProblem("signIn.noToken", { host: provider.host });
  if (nonceOf(token) !== pending.nonce) throw new SignInProblem("signIn.otherSignIn");
  return token;
}

function nonceOf(token: string): unknown {
  const claims = (token.split(".")[1] ?? "").replaceAll("-", "+").replaceAll("_", "/");
  try {
    return record(parsed(atob(claims))).nonce;
  } catch {
    return undefined;
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
