/** Memory of request bodies whose signature is not verified yet, bounded for the process. */

import { Rejection } from "./endpoint.js";

/** Four of the largest bodies that a gateway sends. */
const PROCESS_BYTES = 32 * 1024 * 1024;

interface UnfinishedBody {
  pieces: Uint8Array[];
  size: number;
}

/**
 * Bytes of all bodies that are being read. Full: the oldest unfinished bodies are dropped, so that stalled senders do
 * not lock out the gateway, whose bodies arrive at once.
 */
export class UnverifiedBytes {
  #total = 0;
  /** Oldest first. */
  readonly #bodies = new Set<UnfinishedBody>();

  constructor(private readonly limit: number) {}

  /** A body of at most `maxBytes`. Throws `tooLarge` beyond it, and a `Rejection` if the body was dropped. */
  async read(source: AsyncIterable<Uint8Array>, maxBytes: number, tooLarge: () => Error): Promise<Uint8Array> {
    const body: UnfinishedBody = { pieces: [], size: 0 };
    this.#bodies.add(body);
    let size = 0;
    try {
      for await (const piece of source) {
        size += piece.length;
        // The rest is read and dropped: a client that is still sending does not read the answer.
        if (size > 8 * maxBytes) break;
        if (size <= maxBytes) this.#add(body, piece);
        else this.#drop(body);
      }
      if (size > maxBytes) throw tooLarge();
      if (!this.#bodies.has(body)) throw new Rejection(503, "rate_limited", "too many unfinished bodies; send it again", 1);
      return joined(body);
    } finally {
      this.#drop(body);
    }
  }

  #add(body: UnfinishedBody, piece: Uint8Array): void {
    if (!this.#bodies.has(body)) return;
    body.pieces.push(piece);
    body.size += piece.length;
    this.#total += piece.length;
    for (const oldest of this.#bodies) {
      if (this.#total <= this.limit) return;
      // An empty body frees nothing.
      if (oldest !== body && oldest.size > 0) this.#drop(oldest);
    }
  }

  #drop(body: UnfinishedBody): void {
    if (!this.#bodies.delete(body)) return;
    this.#total -= body.size;
    body.pieces = [];
  }
}

/** The bound shared by all endpoints of this process. */
export const unverifiedBytes = new UnverifiedBytes(PROCESS_BYTES);

function joined({ pieces, size }: UnfinishedBody): Uint8Array {
  const bytes = new Uint8Array(size);
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece, at);
    at += piece.length;
  }
  return bytes;
}

/** The pieces of a body of the Fetch API. Ending the iteration cancels it. */
export async function* piecesOf(body: ReadableStream<Uint8Array> | null): AsyncGenerator<Uint8Array> {
  const reader = body?.getReader();
  try {
    while (reader) {
      const { value, done } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    await reader?.cancel().catch(() => {});
  }
}
