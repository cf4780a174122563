/** One run: the results of its function, with exactly one terminal. */

import { textOf } from "../client.js";
import { ApiError } from "../errors.js";
import { isTerminal, type MessageDeltaPayload } from "../events.js";
import { RunFailed } from "./failure.js";
import type { HostApi } from "./host.js";
import { NoModelError } from "./models.js";
import * as results from "./results.js";
import type { Result } from "./results.js";
import type { RunContext } from "./run.js";
import type { Runs } from "./runs.js";
import type { Frame, ResultStream } from "./stream.js";

/** Item that a runner yields: text or a result. */
export type Yielded = string | Result;

/** Runner function: a generator, or a function that returns the complete answer. */
export type RunFunction = (
  ctx: RunContext,
) => AsyncIterable<Yielded> | Promise<Yielded | undefined | void> | Yielded | undefined;

/** The gateway gives a cancelled run 5 s to end. */
const CANCEL_GRACE = 3_000;

/** Executes one run. `stream` has its results. */
export class Execution {
  readonly #encoder = new TextEncoder();

  constructor(
    readonly run: RunContext,
    private readonly work: RunFunction,
    private readonly abort: AbortController,
    readonly stream: ResultStream,
    private readonly runs: Runs,
  ) {
    stream.secondsLeft = secondsLeftOf(run.host);
    run.host.lastResult = () => stream.buffer.last;
    stream.onLost = () => this.#lose();
    runs.live.set(run.runId, this);
  }

  /** Aborts the signal of the run, which then ends as cancelled. */
  cancel(): void {
    this.abort.abort(new DOMException("the run was cancelled", "AbortError"));
  }

  /** Adds the results of the function to the stream. Call it after a connection is attached. */
  async start(): Promise<void> {
    const ended = new AbortController();
    // Rejects only at the end of the run, by the abort of its pause.
    this.run.host.keepToken(ended.signal).catch(() => {});
    const produced = this.#results();
    try {
      while (!this.stream.isOver) {
        const pending = produced.next();
        if ((await firstOf(pending, this.run.signal)) === "abort") {
          // The function may still need its time to clean up; results after a cancel are dropped.
          await firstOf(pending, undefined, CANCEL_GRACE);
          return this.#end(cancelled());
        }
        const step = await pending;
        await this.#put(step.value ?? results.completed());
      }
    } catch (error) {
      this.#end(failureOf(error, this.run.runId));
    } finally {
      ended.abort();
      // Not awaited: the return of a generator that never ends would block.
      produced.return().catch(() => {});
    }
  }

  /** Ends a run that has lost its connection, or whose results were read. */
  #lose(): void {
    this.runs.live.delete(this.run.runId);
    if (this.stream.resumeWithin !== undefined) {
      console.warn(`no gateway can resume run ${this.run.runId}, cancelling it`);
      this.cancel();
    } else if (!this.stream.isOver) this.cancel();
  }

  async #put(result: Result): Promise<void> {
    if (isTerminal(result.type)) this.#end(result);
    else await this.stream.put(this.#frame(result));
  }

  /** Adds the terminal, also beyond the bounds of the buffer. */
  #end(terminal: Result): void {
    if (this.stream.isOver) return;
    this.stream.end(this.#frame(terminal));
    if (this.stream.resumeWithin !== undefined) this.runs.end(this.run.runId, this.stream);
  }

  #frame(result: Result): Frame {
    const sequence = this.stream.buffer.last + 1;
    let data: string;
    try {
      data = this.#encoded(result, sequence);
    } catch (error) {
      console.error(`run ${this.run.runId}: a result is no JSON, the run fails:`, error);
      throw new RunFailed("runner.exception", "the runner yielded a result that is no JSON");
    }
    return this.#encoder.encode(`event: ${result.type}\nid: ${sequence}\ndata: ${data}\n\n`);
  }

  #encoded(result: Result, sequence: number): string {
    const { usage } = this.run.models;
    const counted = isTerminal(result.type) && Object.keys(usage).length > 0 ? { usage } : {};
    // `result` comes later: a usage that the runner yields replaces the counted one.
    return JSON.stringify({ run_id: this.run.runId, ...counted, ...result, sequence });
  }

  /** Results of the function, with a failure in place of its error. Missing permissions come before the next result. */
  async *#results(): AsyncGenerator<Result, void, undefined> {
    const { missing, runId, signal } = this.run;
    try {
      for await (const result of this.#joined()) {
        yield* missing.take();
        yield result;
      }
      yield* missing.take();
    } catch (error) {
      yield* missing.take();
      // After a cancel, an error of the function is the effect of its aborted signal.
      yield signal.aborted ? cancelled() : failureOf(error, runId);
    }
  }

  /**
   * Deltas without a complete message after them become one. A blank line separates the text after a tool call from
   * the text before it. An attempt from a checkpoint has only the end of the text, so the gateway joins its deltas with
   * those before it.
   */
  async *#joined(): AsyncGenerator<Result, void, undefined> {
    const joins = !this.run.resume;
    let pieces = "";
    let isAfterCall = false;
    for await (const item of this.#yielded()) {
      let result = resultOf(item);
      if (!result) continue;
      if (result.type === "message.delta") {
        const text = textOfDelta(result.data);
        if (isAfterCall && text && /\S$/.test(pieces)) result = separated(result);
        isAfterCall &&= !text;
        pieces += textOfDelta(result.data);
      } else if (result.type.startsWith("tool.call.")) isAfterCall = true;
      const isComplete = result.type === "message.completed" || (result.type === "run.completed" && result.data.message);
      if (isComplete) pieces = "";
      if (result.type === "run.completed" && pieces && joins) {
        yield results.message(pieces);
        pieces = "";
      }
      yield result;
    }
    if (pieces && joins) yield results.message(pieces);
  }

  async *#yielded(): AsyncGenerator<unknown, void, undefined> {
    const returned: unknown = this.work(this.run);
    if (typeof returned === "object" && returned !== null && Symbol.asyncIterator in returned) {
      yield* returned as AsyncIterable<unknown>;
      return;
    }
    const answer = await returned;
    if (answer !== undefined) yield typeof answer === "string" ? results.message(answer) : answer;
  }
}

/** A closure without the run: its stream outlives it, and its context is large. */
function secondsLeftOf(host: HostApi): () => number {
  return () => host.secondsLeft;
}

function cancelled(): Result {
  return results.failed("cancelled", "the run was cancelled");
}

function failureOf(error: unknown, runId: string): Result {
  if (error instanceof RunFailed) return results.failed(error.code, error.text, error.retryable);
  if (error instanceof NoModelError) return results.failed("runner.no_model", error.message);
  if (error instanceof ApiError) {
    console.warn(`run ${runId} fails by a host API call: ${error.message}`);
    return results.failed(error.code, error.reason, error.retryable);
  }
  // Its text may hold secrets, so it goes to the log of the runner only.
  console.error(`run ${runId} fails by an exception of the runner:`, error);
  const name = error instanceof Error ? error.name : typeof error;
  return results.failed("runner.exception", `the runner threw ${name}; its log has the details`);
}

function resultOf(item: unknown): Result | undefined {
  if (typeof item === "string") return item ? results.delta(item) : undefined;
  if (typeof item === "object" && item !== null && "type" in item && "data" in item) return item as Result;
  throw new TypeError(`a runner yields text, or a result of runnel/runner's results, not ${typeof item}`);
}

/** Text of a runner's own delta. The gateway would reject one without a chunk, so it fails the run here. */
function textOfDelta({ chunk }: Partial<MessageDeltaPayload>): string {
  if (typeof chunk === "object" && chunk !== null) return textOf(chunk.content);
  throw new TypeError("a message.delta has no data.chunk: yield text, or results.delta(text)");
}

/** A delta with a blank line before its text. One with `all_content`, or with parts, has its own form. */
function separated(result: Extract<Result, { type: "message.delta" }>): typeof result {
  const { chunk } = result.data;
  if (typeof chunk.content !== "string" || chunk.all_content !== undefined) return result;
  return { ...result, data: { ...result.data, chunk: { ...chunk, content: `\n\n${chunk.content}` } } };
}

/** First of three: `pending` settles, the signal is aborted, or so many milliseconds pass. */
function firstOf(
  pending: Promise<unknown>,
  signal: AbortSignal | undefined,
  milliseconds?: number,
): Promise<"settled" | "abort" | "late"> {
  return new Promise((resolve) => {
    const done = (first: "settled" | "abort" | "late") => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", aborted);
      resolve(first);
    };
    const aborted = () => done("abort");
    const timer = milliseconds === undefined ? undefined : setTimeout(() => done("late"), milliseconds);
    // A signal that is aborted already emits no event.
    if (signal?.aborted) return done("abort");
    signal?.addEventListener("abort", aborted);
    // A rejection settles too: the caller awaits `pending` and gets its error there.
    pending.then(
      () => done("settled"),
      () => done("settled"),
    );
  });
}
