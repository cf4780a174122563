/** Retries with exponential backoff, bounded by the time without progress. */

import { ApiError, errorOf } from "./errors.js";

const FIRST_PAUSE = 250;
const LONGEST_PAUSE = 8_000;
const RETRIED = new Set([408, 425, 429, 500, 502, 503, 504]);

/** A response that a later attempt may improve. */
export class RetryLater extends Error {
  constructor(
    readonly error: ApiError,
    readonly milliseconds: number,
  ) {
    super(error.message);
  }
}

/** Pauses between attempts: doubled up to 8 s, with jitter, and never past the patience without progress. */
export class Backoff {
  #pause = FIRST_PAUSE;
  #until: number;

  constructor(
    private readonly patience: number,
    private readonly signal?: AbortSignal,
  ) {
    this.#until = Date.now() + patience;
  }

  /** Call it after progress. */
  reset(): void {
    this.#pause = FIRST_PAUSE;
    this.#until = Date.now() + this.patience;
  }

  /** Waits before the next attempt. False if the patience is over. */
  async wait(cause: unknown): Promise<boolean> {
    // Jitter keeps clients of one gateway from retrying in step.
    let pause = this.#pause * (0.75 + Math.random() / 2);
    if (cause instanceof RetryLater) pause = Math.max(pause, cause.milliseconds);
    if (Date.now() + pause > this.#until) return false;
    await sleep(pause, this.signal);
    this.#pause = Math.min(this.#pause * 2, LONGEST_PAUSE);
    return true;
  }
}

/** Throws the signal's reason once it is aborted. */
export async function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  signal?.throwIfAborted();
  await new Promise<void>((resolve, reject) => {
    const aborted = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      // Without the removal, a long-lived signal would collect one listener for each pause.
      signal?.removeEventListener("abort", aborted);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", aborted, { once: true });
  });
}

/** Throws for a response to the client that is no success: `RetryLater` or `ApiError`. */
export async function throwFor(response: Response): Promise<void> {
  if (response.ok) return;
  const error = await errorOf(response);
  if (response.status === 401) {
    throw new ApiError(401, error.code, "the API key was rejected; check apiKey or RUNNEL_API_KEY", false, error.details);
  }
  if (!RETRIED.has(response.status)) throw error;
  const seconds = response.headers.get("retry-after") ?? "";
  // `retry-after` can also be a date: then only the backoff applies.
  throw new RetryLater(error, /^[0-9]{1,6}$/.test(seconds) ? Number(seconds) * 1000 : 0);
}
