/** One run: a function's results as server-sent events, with exactly one terminal event. */

import { textOf } from "../client.js";
import { ApiError } from "../errors.js";
import { isTerminal, type MessageDeltaPayload } from "../events.js";
import { RunFailed } from "./failure.js";
import { NoModelError } from "./models.js";
import * as results from "./results.js";
import type { Result } from "./results.js";
import type { RunContext } from "./run.js";

/** Item that a runner yields: text or a result. */
export type Yielded = string | Result;

/** Runner function: a generator, or a function that returns the complete answer. */
export type RunFunction = (
  ctx: RunContext,
) => AsyncIterable<Yielded> | Promise<Yielded | undefined | void> | Yielded | undefined;

/** The gateway gives a cancelled run 5 s to end. */
const CANCEL_GRACE = 3_000;

/** Executes one run while its response is read. */
export class Execution {
  readonly #encoder = new TextEncoder();
  #sequence = 0;

  constructor(
    private readonly run: RunContext,
    private readonly work: RunFunction,
    private readonly abort: AbortController,
    private readonly keepAlive: number,
  ) {}

  /** Aborts the signal of the run, which then ends as cancelled. */
  cancel(): void {
    this.abort.abort(new DOMException("the run was cancelled", "AbortError"));
  }

  /** The body of the response. Call `cancel` before `return`: a function may never end. */
  async *frames(): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined> {
    const ended = new AbortController();
    // Rejects only at the end of the run, by the abort of its pause.
    this.run.host.keepToken(ended.signal).catch(() => {});
    const produced = this.#results();
    let pending: Promise<IteratorResult<Result, void>> | undefined;
    try {
      yield this.#encoder.encode(": run\n\n");
      while (true) {
        // A silent interval leaves the result pending: it is awaited again, not requested again.
        pending ??= produced.next();
        const first = await firstOf(pending, this.run.signal, this.keepAlive);
        if (first === "silence") {
          yield this.#encoder.encode(": alive\n\n");
          continue;
        }
        // The function may still need its time to clean up; results after a cancel are dropped.
        if (first === "abort") await firstOf(pending, undefined, CANCEL_GRACE);
        const step = first === "abort" ? undefined : await pending;
        pending = undefined;
        const result = step?.value ?? (step ? results.completed() : cancelled());
        const { frame, type } = this.#frame(result);
        yield frame;
        if (isTerminal(type)) return;
      }
    } finally {
      ended.abort();
      // An unhandled rejection would end the process of the runner.
      pending?.catch(() => {});
      // Not awaited: the return of a generator that never ends would block.
      produced.return().catch(() => {});
    }
  }

  #frame(result: Result): { frame: Uint8Array<ArrayBuffer>; type: string } {
    let sent = result;
    let data: string;
    try {
      data = this.#encoded(result);
    } catch (error) {
      console.error(`run ${this.run.runId}: a result is no JSON, the run fails:`, error);
      sent = results.failed("runner.exception", "the runner yielded a result that is no JSON");
      data = this.#encoded(sent);
    }
    this.#sequence += 1;
    const frame = this.#encoder.encode(`event: ${sent.type}\nid: ${this.#sequence}\ndata: ${data}\n\n`);
    return { frame, type: sent.type };
  }

  #encoded(result: Result): string {
    const { usage } = this.run.models;
    const counted = isTerminal(result.type) && Object.keys(usage).length > 0 ? { usage } : {};
    // `result` comes later: a usage that the runner yields replaces the counted one.
    return JSON.stringify({ run_id: this.run.runId, ...counted, ...result, sequence: this.#sequence + 1 });
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
   * the text before it.
   */
  async *#joined(): AsyncGenerator<Result, void, undefined> {
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
      if (result.type === "run.completed" && pieces) {
        yield results.message(pieces);
        pieces = "";
      }
      yield result;
    }
    if (pieces) yield results.message(pieces);
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

/** First of three: `pending` settles, the signal is aborted, or nothing for so many milliseconds. */
function firstOf(
  pending: Promise<unknown>,
  signal: AbortSignal | undefined,
  milliseconds: number,
): Promise<"settled" | "abort" | "silence"> {
  return new Promise((resolve) => {
    const done = (first: "settled" | "abort" | "silence") => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", aborted);
      resolve(first);
    };
    const aborted = () => done("abort");
    const timer = setTimeout(() => done("silence"), milliseconds);
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
