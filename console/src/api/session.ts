/** API key of this tab. It is in `sessionStorage` only: other tabs and later visits do not have it. */

const ITEM = "runnel.key";
/** Id of the key, if it is a session of this tab that its own key can delete. */
const SESSION = "runnel.session";

let listeners: (() => void)[] = [];
let notice: string | null = null;

export function currentKey(): string | null {
  return sessionStorage.getItem(ITEM);
}

/** Reason of the last sign-out by the gateway, for the sign-in form. */
export function signOutNotice(): string | null {
  return notice;
}

/** Id of the session that ends with the sign-out. Null: the key stays valid, as one that was entered does. */
export function ownSession(): string | null {
  return sessionStorage.getItem(SESSION);
}

export function signIn(key: string, session: string | null = null): void {
  notice = null;
  sessionStorage.setItem(ITEM, key);
  if (session === null) sessionStorage.removeItem(SESSION);
  else sessionStorage.setItem(SESSION, session);
  notify();
}

export function signOut(reason: string | null = null): void {
  notice = reason;
  sessionStorage.removeItem(ITEM);
  sessionStorage.removeItem(SESSION);
  notify();
}

export function subscribe(listener: () => void): () => void {
  listeners = [...listeners, listener];
  return () => {
    listeners = listeners.filter((other) => other !== listener);
  };
}

function notify(): void {
  for (const listener of listeners) listener();
}

/** Key of a fragment such as `#key=rnl_…`, or null. */
export function keyOfFragment(fragment: string): string | null {
  const key = new URLSearchParams(fragment.replace(/^#/, "")).get("key")?.trim();
  return key ? key : null;
}

/** Signs in with the key of the address, and removes it from address and history. */
export function takeKeyFromAddress(): void {
  const key = keyOfFragment(location.hash);
  if (key === null) return;
  history.replaceState(history.state, "", location.pathname + location.search);
  signIn(key);
}
