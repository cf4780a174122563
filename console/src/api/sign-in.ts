/**
 * Sign-in with the provider of `auth.oidc`. The page leaves for the provider and returns at `/console/sign-in`, where the
 * policy of the gateway lets it exchange the code for a token, and the token for a key that expires.
 */

import {
  authorizationAddress,
  codeOf,
  isOwn,
  type PendingSignIn,
  type Provider,
  providerOf,
  randomText,
  readPending,
  refusal,
  SignInProblem,
  tokenOf,
} from "../lib/pkce";
import { ApiError, api, dataOf } from "./client";
import { currentKey, ownSession, signIn } from "./session";

const ITEM = "runnel.sign-in";
/** Milliseconds for the end of a session at the gateway. The tab is signed out after it in any case. */
const END_TIMEOUT = 5000;

/** An answer of the provider, and the sign-in of this tab. */
export interface Return {
  answer: URLSearchParams;
  pending: PendingSignIn | null;
}

function redirectUri(): string {
  return `${location.origin}${import.meta.env.BASE_URL}sign-in`;
}

/** The provider that can sign a person in here. Null: there is none. */
export async function readProvider(): Promise<Provider | null> {
  try {
    return providerOf(await dataOf(api.GET("/v1/sign-in")));
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}

/** Leaves for the provider. */
export async function startSignIn(provider: Provider): Promise<void> {
  const pending: PendingSignIn = {
    state: randomText(),
    nonce: randomText(),
    verifier: randomText(),
    path: location.pathname + location.search,
  };
  const address = await authorizationAddress(provider, pending, redirectUri());
  sessionStorage.setItem(ITEM, JSON.stringify(pending));
  location.assign(address);
}

/** The answer of the provider in the address, which leaves address, history and storage. Null: there is none. */
export function takeReturn(): Return | null {
  const pending = readPending(sessionStorage.getItem(ITEM));
  // Also without an answer: a sign-in that was left is over.
  sessionStorage.removeItem(ITEM);
  const answer = new URLSearchParams(location.search);
  if (location.origin + location.pathname !== redirectUri()) return null;
  history.replaceState(null, "", pending?.path ?? import.meta.env.BASE_URL);
  // A link must not end a session.
  const isForeign = pending === null && currentKey() !== null;
  return isForeign || !(answer.has("code") || answer.has("error")) ? null : { answer, pending };
}

/** Signs in by the answer, and returns the path of the wanted view. Throws a [`SignInProblem`]. */
export async function finishSignIn({ answer, pending }: Return): Promise<string> {
  if (!isOwn(answer, pending)) throw new SignInProblem("signIn.notStarted");
  const provider = await ofGateway(readProvider());
  if (provider === null) throw new SignInProblem("signIn.noProvider");
  const code = codeOf(answer, provider, redirectUri());
  const token = tokenOf(await exchange(provider, code, pending), pending, provider);
  const headers = { Authorization: `Bearer ${token}` };
  const session = await ofGateway(dataOf(api.POST("/v1/sessions", { params: { header: headers } })));
  // Keys of other roles cannot delete keys.
  signIn(session.key, session.role === "admin" ? session.id : null);
  return pending.path;
}

async function exchange(provider: Provider, code: string, pending: PendingSignIn): Promise<unknown> {
  const body = new URLSearchParams({
    grant_type: "authorization_code",
    code,
    redirect_uri: redirectUri(),
    client_id: provider.clientId,
    code_verifier: pending.verifier,
  });
  const options: RequestInit = { credentials: "omit", cache: "no-store", redirect: "error" };
  const answer = await fetch(provider.token, { ...options, method: "POST", body }).catch(() => {
    // The browser tells a page neither the cause nor the status of a response that it may not read.
    throw new SignInProblem("signIn.unreachable", { host: provider.host, origin: location.origin });
  });
  const read: unknown = await answer.json().catch(() => undefined);
  if (!answer.ok) throw refusal(provider, read, redirectUri());
  return read;
}

/** Data of the gateway, whose error becomes a problem of the sign-in. */
async function ofGateway<Data>(call: Promise<Data>): Promise<Data> {
  try {
    return await call;
  } catch (error) {
    const reason = error instanceof Error ? error.message : `${error}`;
    const isWithoutRole = error instanceof ApiError && error.status === 403;
    throw new SignInProblem(isWithoutRole ? "signIn.noRole" : "signIn.gateway", { reason });
  }
}

/** Deletes the session of this tab at the gateway. False: it stays open there until it expires. */
export async function endSession(): Promise<boolean> {
  const id = ownSession();
  if (id === null) return true;
  const params = { path: { api_key_id: id } };
  const signal = AbortSignal.timeout(END_TIMEOUT);
  try {
    const { response } = await api.DELETE("/v1/api-keys/{api_key_id}", { params, signal });
    // 401: the session has ended before.
    return response.ok || response.status === 401;
  } catch {
    return false;
  }
}
