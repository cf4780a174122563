/** Results of a run between the function that yields them and the connections that read them. */

const BOUNDS = { bytes: 8 * 1024 * 1024, results: 10_000 };

type Bytes = Uint8Array<ArrayBuffer>;

/** Encoded results of one run by sequence. Full: the oldest sent ones are dropped, never an unsent one. */
export class ResultBuffer {
  readonly #bounds: typeof BOUNDS;
  readonly #frames = new Map<number, Bytes>();
  #bytes = 0;
  /** Sequence of the last dropped result. */
  #dropped = 0;
  /** Sequence of the last result that the connection took. */
  #sent = 0;

  constructor(bounds: Partial<typeof BOUNDS> = {}) {
    this.#bounds = { ...BOUNDS, ...bounds };
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Sequence of the last result; 0 before the first one. */
  get last(): number {
    return this.#dropped + this.#frames.size;
  }

  /** True if the connection has not taken all results. */
  get hasUnsent(): boolean {
    return this.#sent < this.last;
  }

  /** True if the results reach a bound: those that are left are unsent. */
  get isFull(): boolean {
    return this.#bytes >= this.#bounds.bytes || this.#frames.size >= this.#bounds.results;
  }

  /** Appends a result. */
  add(frame: Bytes): void {
    this.#frames.set(this.last + 1, frame);
    this.#bytes += frame.length;
    this.#trim();
  }

  /** First unsent result. Call `confirm` after it was sent. */
  next(): Bytes | undefined {
    return this.#frames.get(this.#sent + 1);
  }

  /** Marks the first unsent result as sent. */
  confirm(): void {
    this.#sent += 1;
    this.#trim();
  }

  /** True if no result after this one is missing. */
  hasAfter(sequence: number): boolean {
    return this.#dropped <= sequence && sequence <= this.last;
  }

  /** Drops the results that the gateway has stored, and marks all others as unsent. */
  restart(after: number): void {
    while (this.#dropped < after) this.#drop();
    this.#sent = after;
  }

  #trim(): void {
    while (this.isFull && this.#dropped < this.#sent) this.#drop();
  }

  #drop(): void {
    this.#dropped += 1;
    this.#bytes -= this.#frames.get(this.#dropped)?.length ?? 0;
    this.#frames.delete(this.#dropped);
  }
}
