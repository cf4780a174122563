import { useSyncExternalStore } from "react";

function subscribe(listener: () => void): () => void {
  document.addEventListener("visibilitychange", listener);
  return () => document.removeEventListener("visibilitychange", listener);
}

/**
 * True while the tab is in view. Streams of hidden tabs end: over HTTP/1.1 a browser opens six connections to a
 * gateway, for all tabs together.
 */
export function useIsVisible(): boolean {
  return useSyncExternalStore(subscribe, () => document.visibilityState === "visible");
}
