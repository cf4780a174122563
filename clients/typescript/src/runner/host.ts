/** Calls of the host API with the token of a run. */

import { ApiError, errorOf, textOfError } from "../errors.js";
import { collect, segment } from "../http.js";
import { sleep } from "../retry.js";
import { decode } from "../sse.js";
import type { HostAccess } from "./context.js";

const MAX_RESPONSE_BYTES = 20 * 1024 * 1024;
const CALL_TIMEOUT = 30_000;
// A token is renewed in its last minute, and again 5 s after a failure.
const RENEWAL_SECONDS = 60;
const RENEWAL_PAUSE = 5;
/** A call that reached no gateway is repeated after so many milliseconds, or after the resume. */
const REPEAT_PAUSE = 1_000;
const UNSENT = new Set([
  "ECONNREFUSED",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "ENOTFOUND",
  "EAI_AGAIN",
  "UND_ERR_CONNECT_TIMEOUT",
  "ConnectionRefused",
]);
/** A run lasts a day at most. */
const LONGEST_RUN = 86_400;

/** Parts of a host API call. A call takes 30 s at most, a `long` one the rest of the run. */
export interface HostCall {
  json?: unknown;
  body?: BodyInit;
  headers?: Record<string, string>;
  query?: Record<string, string | number | boolean | undefined>;
  long?: boolean;
}

/** Times and transport of a run's calls. */
export interface HostOptions {
  /** Epoch seconds on the gateway's clock. */
  deadlineAt?: number | null | undefined;
  /** The gateway's time now, in epoch seconds. */
  now?: number;
  /** Aborts all calls: the run was cancelled or has ended. */
  signal?: AbortSignal;
  fetch?: typeof fetch;
  /** Seconds that calls of a resumable run wait for the resume. Undefined for any other run. */
  resumeWithin?: number | undefined;
}

/**
 * Host API of one run, as `ctx.host`. `ctx.models`, `ctx.tools` and the others use it.
 *
 * Errors are `ApiError`s. Their codes come from the gateway, or are `callback.unreachable` and `callback.timeout`.
 * Redirects are not followed: the token goes to the gateway only.
 */
export class HostApi {
  readonly resumeWithin: number | undefined;
  /** Sequence of the last result of the run; set by its execution. */
  lastResult: () => number = () => 0;
  #baseUrl = "";
  #token = "";
  #expiresAt = 0;
  readonly #deadlineAt: number;
  /** Difference of the gateway's clock to ours, in seconds. */
  #offset = 0;
  /** Aborted by the next resume. */
  #moved = new AbortController();
  readonly #signal: AbortSignal;
  readonly #send: typeof fetch;

  constructor(access: HostAccess, options: HostOptions = {}) {
    this.#take(access, options.now);
    this.#deadlineAt = options.deadlineAt ?? this.#now() + LONGEST_RUN;
    this.resumeWithin = options.resumeWithin;
    this.#signal = options.signal ?? new AbortController().signal;
    this.#send = options.fetch ?? ((input, init) => fetch(input, init));
  }

  /** Takes the access of a resume, which calls of a resumable run wait for. `now` as in `HostOptions`. */
  move(access: HostAccess, now: number): void {
    this.#take(access, now);
    this.#moved.abort();
    this.#moved = new AbortController();
  }

  #take(access: HostAccess, now: number | undefined): void {
    this.#baseUrl = access.base_url.replace(/\/+$/, "");
    this.#token = access.token;
    this.#expiresAt = access.token_expires_at;
    this.#offset = now === undefined ? 0 : now - Date.now() / 1000;
  }

  /** True if a call of a resumable run broke with its gateway: the effect of the call is unknown. */
  isLost(error: unknown): boolean {
    return this.resumeWithin !== undefined && error instanceof ApiError && error.code === "callback.unreachable";
  }

  /** Base URL of the gateway. A resume changes it, and the token. */
  get baseUrl(): string {
    return this.#baseUrl;
  }

  /** Run token: an API key for `{baseUrl}/openai/v1`, `{baseUrl}/anthropic`, `{baseUrl}/gemini` and `{baseUrl}/mcp`. */
  get token(): string {
    return this.#token;
  }

  /** Seconds until the deadline of the run. */
  get secondsLeft(): number {
    return this.#deadlineAt - this.#now();
  }

  /** JSON of a response; undefined for an empty one. Each part of `path` is one segment. */
  async json<T>(method: string, path: string[], call: HostCall = {}): Promise<T> {
    const text = new TextDecoder().decode(await this.bytes(method, path, call));
    return (text === "" ? undefined : JSON.parse(text)) as T;
  }

  /** Body of a response, at most `maxBytes`. */
  async bytes(method: string, path: string[], call: HostCall = {}, maxBytes = MAX_RESPONSE_BYTES): Promise<Uint8Array> {
    return this.#repeated(isRepeatable(method, call.headers), async () => {
      const response = await this.#call(method, path, call);
      const tooLarge = () => new ApiError(0, "callback.invalid_answer", `the answer is larger than ${maxBytes} bytes`);
      return collect(response.body, maxBytes, tooLarge);
    });
  }

  /** JSON of each event of a response that is a stream. An event `{"error": …}` is thrown as `ApiError`. */
  async *events<T>(method: string, path: string[], call: HostCall = {}): AsyncGenerator<T, void, undefined> {
    const response = await this.#repeated(false, () => this.#call(method, path, { ...call, long: true }));
    const events = decode(response.body ?? new ReadableStream());
    try {
      while (true) {
        const step = await this.#guarded(() => events.next());
        if (step.done) return;
        const data = JSON.parse(step.value.data);
        // The status is sent before the stream fails, so a later error arrives as an event.
        if (data.error) {
          const { code, message, retryable, details } = data.error;
          throw new ApiError(200, code, message, retryable, details);
        }
        yield data as T;
      }
    } finally {
      await events.return();
    }
  }

  /** Renews the token before it expires, until it lives as long as the run, or `signal` is aborted. */
  async keepToken(signal: AbortSignal): Promise<void> {
    while (this.#expiresAt + 2 < this.#deadlineAt) {
      await sleep(Math.max(this.#expiresAt - RENEWAL_SECONDS - this.#now(), 0) * 1000, signal);
      try {
        const moved = this.#moved.signal;
        const renewed = await this.json<{ token: string; token_expires_at: number }>("POST", ["token"]);
        // The token of a resume replaces those of the attempt before it.
        if (!moved.aborted) {
          this.#token = renewed.token;
          this.#expiresAt = renewed.token_expires_at;
        }
      } catch (error) {
        // The gateway renews no token of a run that has ended.
        if (!(error instanceof ApiError) || error.isRunOver) return;
        console.warn(`run token not renewed, retrying in ${RENEWAL_PAUSE} s: ${error.message}`);
      }
      await sleep(RENEWAL_PAUSE * 1000, signal);
    }
  }

  async #call(method: string, path: string[], call: HostCall): Promise<Response> {
    const milliseconds = Math.min(this.secondsLeft * 1000, call.long ? Number.POSITIVE_INFINITY : CALL_TIMEOUT);
    if (milliseconds <= 0) throw new ApiError(0, "deadline_exceeded", "the time of the run is over");
    const headers: Record<string, string> = { ...call.headers, authorization: `Bearer ${this.#token}` };
    let body = call.body ?? null;
    if (call.json !== undefined) {
      headers["content-type"] = "application/json";
      body = JSON.stringify(call.json);
    }
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(call.query ?? {})) if (value !== undefined) query.set(name, `${value}`);
    const url = [this.#baseUrl, ...path.map(segment)].join("/") + (query.size ? `?${query}` : "");
    // Node rejects a timeout that is no integer.
    const signal = AbortSignal.any([this.#signal, AbortSignal.timeout(Math.ceil(milliseconds))]);
    const response = await this.#send(url, { method, headers, body, redirect: "manual", signal });
    if (!response.ok) throw await errorOf(response);
    return response;
  }

  /**
   * Repeats a call of a resumable run that had no effect once the run is resumed, and also a broken one if it
   * `isHarmless`.
   */
  async #repeated<T>(isHarmless: boolean, work: () => Promise<T>): Promise<T> {
    let until: number | undefined;
    while (true) {
      const moved = this.#moved.signal;
      try {
        return await work();
      } catch (error) {
        const failure = this.#failureOf(error);
        const isRefused = failure.code === "run_moved";
        const isBroken = failure.code === "callback.unreachable";
        const isRepeatable = isRefused || isUnsent(error) || (isBroken && isHarmless);
        if (this.resumeWithin === undefined || !isRepeatable) throw failure;
        until ??= Date.now() + Math.min(this.resumeWithin, this.secondsLeft) * 1000;
        const left = until - Date.now();
        // The gateway may be reachable again without a resume.
        const pause = Math.max(isRefused ? left : Math.min(left, REPEAT_PAUSE), 0);
        await sleep(pause, AbortSignal.any([moved, this.#signal])).catch(() => this.#signal.throwIfAborted());
        if (!moved.aborted && (isRefused || left <= 0)) throw failure;
      }
    }
  }

  /** Turns failures of the transport into an `ApiError`. */
  async #guarded<T>(work: () => Promise<T>): Promise<T> {
    return work().catch((error: unknown) => {
      throw this.#failureOf(error);
    });
  }

  /** Error of the gateway or the transport. Throws any other one, and the end of the run. */
  #failureOf(error: unknown): ApiError {
    if (error instanceof ApiError) return error;
    // First the end of the run: its abort is a DOMException too, but no timeout.
    this.#signal.throwIfAborted();
    if (error instanceof DOMException) {
      return new ApiError(0, "callback.timeout", "the gateway did not answer in time", true);
    }
    // `fetch` throws a TypeError for network faults.
    if (!(error instanceof TypeError)) throw error;
    return new ApiError(0, "callback.unreachable", `the gateway cannot be reached: ${textOfError(error)}`, true);
  }

  #now(): number {
    return Date.now() / 1000 + this.#offset;
  }
}

/** True if no connection was established. Node has the code in the cause, Bun in the error. */
function isUnsent(error: unknown): boolean {
  const { code, cause } = (error ?? {}) as { code?: unknown; cause?: { code?: unknown } };
  return UNSENT.has(`${code}`) || UNSENT.has(`${cause?.code}`);
}

/** True if a second execution has no second effect. */
function isRepeatable(method: string, headers: Record<string, string> = {}): boolean {
  const names = Object.keys(headers).map((name) => name.toLowerCase());
  // The second execution of a conditional write would report a conflict with the first one.
  const isUnconditional = !names.includes("if-match") && !names.includes("if-none-match");
  if (method === "PUT" || method === "DELETE") return isUnconditional || names.includes("idempotency-key");
  return method === "GET" || names.includes("idempotency-key");
}
