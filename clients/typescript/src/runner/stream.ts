/** Results of a run as server-sent events, for the connection that is attached. */

import { ResultBuffer } from "./buffer.js";
import { RunFailed } from "./failure.js";

export type Frame = Uint8Array<ArrayBuffer>;
export type Frames = AsyncGenerator<Frame, void, undefined>;

const GREETING = new TextEncoder().encode(": run\n\n");
const KEEP_ALIVE = new TextEncoder().encode(": alive\n\n");

/** Results of a run for one connection. */
export interface Connection {
  frames: Frames;
  /** Aborted when another connection has the run: this one is to be closed. */
  replaced: AbortSignal;
  /** Detaches the connection, also one whose frames were never read. */
  close(): void;
}

/** Results of one run. `onLost` ends the run: at once after its connection, or after `resumeWithin` seconds. */
export class ResultStream {
  readonly buffer: ResultBuffer;
  attempt = 0;
  isOver = false;
  onLost = (): void => {};
  /** Seconds until the deadline of the run. */
  secondsLeft = (): number => 0;
  #attached: AbortController | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  readonly #arrived = new Notifier();
  readonly #taken = new Notifier();

  constructor(
    /** Milliseconds. */
    private readonly keepAlive: number,
    /** Seconds; undefined for a run that ends with its connection. */
    readonly resumeWithin: number | undefined,
  ) {
    // The results of a run that cannot be resumed are dropped as soon as they are sent.
    this.buffer = resumeWithin === undefined ? new ResultBuffer({ results: 0 }) : new ResultBuffer();
  }

  /** Adds a result. Throws `RunFailed` if the buffer is full and no connection is attached. */
  async put(frame: Frame): Promise<void> {
    // Backpressure: the function is one result ahead of its connection.
    while (this.#attached && this.buffer.hasUnsent) await this.#taken.wait();
    if (!this.#attached && this.buffer.isFull) {
      throw new RunFailed("runner.buffer_full", "no gateway was attached, and the buffer of results is full", true);
    }
    this.add(frame);
  }

  /** Adds a result without waiting. Results after the terminal are dropped. */
  add(frame: Frame): void {
    if (this.isOver) return;
    this.buffer.add(frame);
    this.#arrived.notify();
  }

  /** Adds the terminal. */
  end(frame: Frame): void {
    this.add(frame);
    this.isOver = true;
  }

  /** Results after this sequence, for a connection that replaces the one before it. */
  attach(attempt: number, after: number): Connection {
    clearTimeout(this.#timer);
    this.#attached?.abort();
    const attached = new AbortController();
    this.#attached = attached;
    this.attempt = attempt;
    this.buffer.restart(after);
    this.#arrived.notify();
    // The gateway may have stored the result that the function waits for.
    this.#taken.notify();
    const frames = this.#frames(attached);
    const close = () => {
      this.#detach(attached);
      frames.return().catch(() => {});
    };
    return { frames, replaced: attached.signal, close };
  }

  /** Ends a run that no gateway can resume. */
  abandon(): void {
    this.isOver = true;
    this.onLost();
  }

  /** Ends the part of a connection. One that was replaced has none. */
  #detach(attached: AbortController): void {
    if (this.#attached !== attached) return;
    this.#attached = undefined;
    this.#arrived.notify();
    this.#taken.notify();
    if (this.resumeWithin === undefined) return this.onLost();
    const seconds = Math.max(Math.min(this.resumeWithin, this.secondsLeft()), 0);
    this.#timer = setTimeout(() => this.abandon(), seconds * 1000);
    // A run that waits for a gateway does not hold the process.
    (this.#timer as { unref?: () => void }).unref?.();
  }

  async *#frames(attached: AbortController): Frames {
    try {
      yield GREETING;
      while (this.#attached === attached) {
        const frame = this.buffer.next();
        if (frame) {
          yield frame;
          if (this.#attached !== attached) return;
          this.buffer.confirm();
          this.#taken.notify();
        } else if (this.isOver) return;
        else if (!(await this.#arrived.wait(this.keepAlive))) yield KEEP_ALIVE;
      }
    } finally {
      this.#detach(attached);
    }
  }
}

class Notifier {
  readonly #waiting = new Set<() => void>();

  notify(): void {
    for (const wake of this.#waiting) wake();
    this.#waiting.clear();
  }

  /** False after so many milliseconds. */
  wait(milliseconds?: number): Promise<boolean> {
    return new Promise((resolve) => {
      const wake = () => {
        clearTimeout(timer);
        resolve(true);
      };
      const late = () => {
        this.#waiting.delete(wake);
        resolve(false);
      };
      const timer = milliseconds === undefined ? undefined : setTimeout(late, milliseconds);
      this.#waiting.add(wake);
    });
  }
}
