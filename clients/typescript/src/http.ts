/** Requests to one gateway. */

import { GatewayUnreachableError, RunnelError, textOfError } from "./errors.js";
import { Backoff, RetryLater, throwFor } from "./retry.js";

const CALL_TIMEOUT = 30_000;

/** Parts of a request. `json` and `body` exclude each other. */
export interface RequestParts {
  json?: unknown;
  body?: BodyInit;
  headers?: Record<string, string>;
  query?: Record<string, string | number | undefined | null>;
  signal?: AbortSignal | undefined;
  timeout?: number;
}

/** Sends requests with the API key, to the gateway only: redirects are not followed. */
export class GatewayHttp {
  constructor(
    readonly url: string,
    private readonly apiKey: string,
    /** Milliseconds of retries without progress. */
    readonly patience: number,
    private readonly send: typeof fetch,
  ) {}

  /** One request, without retries. */
  fetch(method: string, path: string, parts: RequestParts = {}): Promise<Response> {
    const headers: Record<string, string> = { ...parts.headers, authorization: `Bearer ${this.apiKey}` };
    let body = parts.body ?? null;
    if (parts.json !== undefined) {
      headers["content-type"] = "application/json";
      body = JSON.stringify(parts.json);
    }
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(parts.query ?? {})) if (value != null) query.set(name, `${value}`);
    const url = `${this.url.replace(/\/+$/, "")}${path}${query.size ? `?${query}` : ""}`;
    // A redirect could lead the key to another server.
    return this.send(url, { method, headers, body, redirect: "manual", signal: parts.signal ?? null });
  }

  /** The response of a request that may be repeated. */
  async response(method: string, path: string, parts: RequestParts = {}): Promise<Response> {
    const backoff = new Backoff(this.patience, parts.signal);
    while (true) {
      let cause: unknown;
      try {
        // The timeout bounds one attempt; the patience bounds all of them.
        const timeout = AbortSignal.timeout(parts.timeout ?? CALL_TIMEOUT);
        const signal = parts.signal ? AbortSignal.any([parts.signal, timeout]) : timeout;
        const response = await this.fetch(method, path, { ...parts, signal });
        await throwFor(response);
        return response;
      } catch (error) {
        // An abort by the caller is no network fault, so it is not retried.
        parts.signal?.throwIfAborted();
        // An error of the gateway is final. `RetryLater` and network faults are retried.
        if (error instanceof RunnelError) throw error;
        cause = error;
      }
      if (await backoff.wait(cause)) continue;
      // The gateway responded, so its own error is thrown.
      if (cause instanceof RetryLater) throw cause.error;
      throw new GatewayUnreachableError(this.unreachable(textOfError(cause)), { cause });
    }
  }

  /** The JSON of such a response. */
  async json<T>(method: string, path: string, parts: RequestParts = {}): Promise<T> {
    return (await (await this.response(method, path, parts)).json()) as T;
  }

  /** The text of an error without a response. */
  unreachable(reason: string): string {
    return `no gateway at ${this.url} for ${this.patience / 1000} s: ${reason}`;
  }
}

/** The body of a response, at most `maxBytes`. */
export async function readBounded(response: Response, maxBytes: number): Promise<Uint8Array<ArrayBuffer>> {
  return collect(response.body, maxBytes, () => new RunnelError(`the file is larger than ${maxBytes} bytes`));
}

/** The bytes of a stream. Throws `tooLarge` beyond `maxBytes`. */
export async function collect(
  body: ReadableStream<Uint8Array> | null,
  maxBytes: number,
  tooLarge: () => Error,
): Promise<Uint8Array<ArrayBuffer>> {
  const pieces: Uint8Array[] = [];
  let size = 0;
  const reader = body?.getReader();
  try {
    while (reader) {
      const { value, done } = await reader.read();
      if (done) break;
      size += value.length;
      if (size > maxBytes) throw tooLarge();
      pieces.push(value);
    }
  } finally {
    // Frees the connection after an oversized body. A cancel of a failed body repeats its error.
    await reader?.cancel().catch(() => {});
  }
  const bytes = new Uint8Array(size);
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece, at);
    at += piece.length;
  }
  return bytes;
}

/** One segment of a path, percent-encoded. Dot segments would leave the path. */
export function segment(text: string): string {
  if (text === "" || text === "." || text === "..") throw new RangeError(`${JSON.stringify(text)} is no id`);
  return encodeURIComponent(text);
}
