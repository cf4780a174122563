/** Runs of an endpoint. */

import type { Execution } from "./execution.js";
import type { ResultStream } from "./stream.js";

const ENDED_RUNS = 1024;
const ENDED_BYTES = 32 * 1024 * 1024;

/**
 * Live runs, and the results of ended resumable ones: the gateway may have been lost before it stored the last.
 *
 * Full of ended runs: the oldest are dropped, and a resume of them is answered with 404.
 */
export class Runs {
  readonly live = new Map<string, Execution>();
  /** Oldest first. */
  readonly #ended = new Map<string, ResultStream>();

  /** Results of a run. */
  streamOf(runId: string): ResultStream | undefined {
    return this.live.get(runId)?.stream ?? this.#ended.get(runId);
  }

  /** Frees the slot of a resumable run that has its terminal. Its results stay for a resume. */
  end(runId: string, stream: ResultStream): void {
    this.live.delete(runId);
    this.#ended.set(runId, stream);
    stream.onLost = () => {
      // A later run may have the same id.
      if (this.#ended.get(runId) === stream) this.#ended.delete(runId);
    };
    let bytes = 0;
    for (const one of this.#ended.values()) bytes += one.buffer.bytes;
    for (const [oldest, { buffer }] of this.#ended) {
      if (this.#ended.size <= ENDED_RUNS && bytes <= ENDED_BYTES) return;
      bytes -= buffer.bytes;
      this.#ended.delete(oldest);
    }
  }
}
