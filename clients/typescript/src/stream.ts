/** The events of one run, resumed after each broken connection. */

import { GatewayUnreachableError, NoRunError, RunnelError, StreamLostError, textOfError } from "./errors.js";
import { isTerminal, type RunEvent } from "./events.js";
import { type GatewayHttp, segment } from "./http.js";
import { Backoff, RetryLater, throwFor } from "./retry.js";
import { decode } from "./sse.js";
import type { EventAccepted, EventEnvelope } from "./types.js";

/** The gateway sends a comment after 15 s of silence. */
const SILENCE = 45_000;

/** Start of a stream: a post, or a position in a run. */
export interface StreamStart {
  event?: EventEnvelope;
  /** Headers that make the post idempotent. */
  headers?: Record<string, string>;
  runId?: string;
  after?: number;
  signal?: AbortSignal | undefined;
}

/**
 * Async iterable that yields each event of a run once, up to its terminal event: `for await (const event of stream)`.
 * Leaving the loop closes the connection; the run continues.
 */
export class RunStream implements AsyncIterable<RunEvent> {
  /** Id of the run, known from the first event on. */
  runId: string | undefined;
  /** Sequence of the last event. */
  after: number;
  #post: { event: EventEnvelope; headers: Record<string, string> } | undefined;
  readonly #signal: AbortSignal | undefined;

  constructor(
    private readonly http: GatewayHttp,
    start: StreamStart,
  ) {
    this.runId = start.runId;
    this.after = start.after ?? 0;
    this.#signal = start.signal;
    this.#post = start.event && { event: start.event, headers: start.headers ?? {} };
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<RunEvent, void, undefined> {
    const backoff = new Backoff(this.http.patience, this.#signal);
    while (true) {
      let cause: unknown;
      try {
        for await (const event of this.#connection()) {
          // Each event is yielded once, also if a resumed stream overlaps the one before.
          if (event.sequence <= this.after) continue;
          this.after = event.sequence;
          // Progress restarts the patience: a long run survives many short outages.
          backoff.reset();
          yield event;
          if (isTerminal(event.type)) return;
        }
      } catch (error) {
        // An abort by the caller is no network fault, so it is not retried.
        this.#signal?.throwIfAborted();
        if (error instanceof EndOfRun) return;
        if (error instanceof RunnelError || error instanceof RangeError) throw error;
        cause = error;
      }
      if (!(await backoff.wait(cause))) throw this.#lost(cause);
    }
  }

  /** The events of one response. */
  async *#connection(): AsyncGenerator<RunEvent, void, undefined> {
    const silence = new AbortController();
    let timer = setTimeout(() => silence.abort(), SILENCE);
    const stillThere = () => {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(new Error("the stream is silent")), SILENCE);
    };
    try {
      const response = await this.#request(silence.signal);
      if (response.status === 204) throw new EndOfRun();
      await throwFor(response);
      if (response.status !== 200) return this.#accept((await response.json()) as EventAccepted);
      if (!response.headers.get("content-type")?.startsWith("text/event-stream") || !response.body) {
        throw new RunnelError(`no event stream at ${this.http.url}: check the URL of the gateway`);
      }
      this.runId = response.headers.get("runnel-run-id") ?? this.runId;
      // Comments reset the timer too: a run may be silent for longer than `SILENCE`.
      for await (const event of decode(response.body, stillThere)) {
        // Events without an id are notices of the gateway, not events of the run.
        if (event.id) yield JSON.parse(event.data) as RunEvent;
      }
    } finally {
      clearTimeout(timer);
      // Closes the connection if the caller leaves the loop early.
      silence.abort();
    }
  }

  #request(silence: AbortSignal): Promise<Response> {
    const headers: Record<string, string> = { accept: "text/event-stream" };
    const signal = this.#signal ? AbortSignal.any([this.#signal, silence]) : silence;
    // Before the first event, the post is repeated: it is idempotent. If an active run has absorbed the event, only the
    // response to the post names the sequence at which the stream begins.
    if (this.#post && !(this.runId && this.after)) {
      const { event, headers: idempotent } = this.#post;
      return this.http.fetch("POST", "/v1/events", { json: event, headers: { ...headers, ...idempotent }, signal });
    }
    if (this.after) headers["last-event-id"] = `${this.after}`;
    return this.http.fetch("GET", `/v1/runs/${segment(this.runId ?? "")}/events`, { headers, signal });
  }

  /** A 202 in place of a stream: the event started no run, or the gateway does not stream it. */
  #accept(accepted: EventAccepted): void {
    if (!accepted.run_id) throw new NoRunError(accepted.event_id, accepted.reason ?? "unknown", accepted.hint ?? undefined);
    this.runId = accepted.run_id;
    this.after = accepted.last_sequence ?? 0;
    // The next attempt reads the run's own stream: a repeated post would return the same 202.
    this.#post = undefined;
  }

  #lost(cause: unknown): RunnelError {
    const reason = cause === undefined ? "the stream ended before the run" : textOfError(cause);
    if (this.runId) return new StreamLostError(this.runId, this.after, reason);
    if (cause instanceof RetryLater) return cause.error;
    return new GatewayUnreachableError(this.http.unreachable(reason));
  }
}

/** The terminal event was delivered before. */
class EndOfRun extends Error {}
