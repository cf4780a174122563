/** Follows the ledger of a run, and resumes a broken stream after the last event. */

import type { RunEvent } from "./client";
import { ApiError } from "./errors";
import { frames } from "./sse";

/** Waits between two attempts, in ms. The last one repeats. */
const WAITS = [250, 500, 1000, 2000, 5000];

/** True for the last event of a ledger. */
export function isTerminal(event: RunEvent): boolean {
  return event.type === "run.completed" || event.type === "run.failed";
}

export interface Follower {
  onEvents(events: RunEvent[]): void;
  /** The stream broke and will be resumed, or it is back. */
  onConnected(state: "live" | "reconnecting"): void;
}

/** Opens the stream after a sequence. */
export type Open = (after: number, signal: AbortSignal) => Promise<Response>;

/** Resolves after the terminal event or an abort. Rejects if the gateway refuses the stream for good. */
export async function follow(
  open: Open,
  after: number,
  signal: AbortSignal,
  follower: Follower,
  wait: (ms: number, signal: AbortSignal) => Promise<void> = sleep,
): Promise<void> {
  let last = after;
  for (let failures = 0; !signal.aborted; failures += 1) {
    try {
      const response = await open(last, signal);
      follower.onConnected("live");
      if (response.body === null) return;
      for await (const frame of frames(response.body)) {
        if (frame.id === "") continue;
        const event = JSON.parse(frame.data) as RunEvent;
        // A resumed stream may repeat an event.
        if (event.sequence <= last) continue;
        last = event.sequence;
        failures = 0;
        follower.onEvents([event]);
        if (isTerminal(event)) return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && !error.retryable) throw error;
    }
    if (signal.aborted) return;
    follower.onConnected("reconnecting");
    await wait(WAITS[Math.min(failures, WAITS.length - 1)] ?? 5000, signal);
  }
}

function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
