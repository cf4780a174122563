/** API key of this tab. It is in `sessionStorage` only: other tabs and later visits do not have it. */

const ITEM = "runnel.key";

let listeners: (() => void)[] = [];
let notice: string | null = null;

export function currentKey(): string | null {
  return sessionStorage.getItem(ITEM);
}

/** Reason of the last sign-out by the gateway, for the sign-in form. */
export function signOutNotice(): string | null {
  return notice;
}

export function signIn(key: string): void {
  notice = null;
  sessionStorage.setItem(ITEM, key);
  notify();
}

export function signOut(reason: string | null = null): void {
  notice = reason;
  sessionStorage.removeItem(ITEM);
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
