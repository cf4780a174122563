import { expect, test } from "vitest";
import type { RunEvent } from "./client";
import { ApiError } from "./errors";
import { follow } from "./follow";
import { type Frame, frames } from "./sse";

/** A body that arrives in these pieces. */
function body(...pieces: (string | Uint8Array)[]): ReadableStream<Uint8Array> {
  const encoder = new TextEncoder();
  return new ReadableStream({
    start(controller) {
      for (const piece of pieces)
        controller.enqueue(typeof piece === "string" ? encoder.encode(piece) : piece);
      controller.close();
    },
  });
}

async function read(stream: ReadableStream<Uint8Array>): Promise<Frame[]> {
  const all: Frame[] = [];
  for await (const frame of frames(stream)) all.push(frame);
  return all;
}

function event(sequence: number, type: string): string {
  return `id: ${sequence}\nevent: ${type}\ndata: ${JSON.stringify({ sequence, type })}\n\n`;
}

test("joins frames that arrive in pieces", async () => {
  const found = await read(
    body("id: 1\neve", "nt: a\nda", "ta: x\ndata: y\n", "\n: comment\n\ndata:z\r\n\r\n"),
  );
  expect(found).toEqual([
    { event: "a", id: "1", data: "x\ny" },
    { event: "message", id: "", data: "z" },
  ]);
});

test("joins split characters and drops an unfinished frame", async () => {
  const bytes = new TextEncoder().encode("data: 流\n\ndata: cut");
  expect(await read(body(bytes.slice(0, 7), bytes.slice(7)))).toEqual([
    { event: "message", id: "", data: "流" },
  ]);
});

test("refuses an endless line", async () => {
  await expect(read(body("data: ".padEnd(5_000_000, "x")))).rejects.toThrow("line of the stream");
});

interface Followed {
  opened: number[];
  events: RunEvent[];
  states: string[];
}

async function followed(answers: (() => Response)[]): Promise<Followed> {
  const seen: Followed = { opened: [], events: [], states: [] };
  await follow(
    async (after) => {
      const next = answers[seen.opened.length];
      seen.opened.push(after);
      if (next === undefined) throw new ApiError(404, "not_found", "no further answer");
      return next();
    },
    0,
    new AbortController().signal,
    { onEvents: (events) => seen.events.push(...events), onConnected: (state) => seen.states.push(state) },
    () => Promise.resolve(),
  );
  return seen;
}

test("resumes a cut stream after its last event", async () => {
  const seen = await followed([
    () => new Response(body(event(1, "message.delta"), event(2, "message.delta"), "id: 3\nda")),
    () => {
      throw new TypeError("network error");
    },
    () => new Response(body(event(2, "message.delta"), event(3, "run.completed"))),
  ]);
  expect(seen.opened).toEqual([0, 2, 2]);
  expect(seen.events.map((found) => found.sequence)).toEqual([1, 2, 3]);
  expect(seen.states).toEqual(["live", "reconnecting", "reconnecting", "live"]);
});

test("ends at an error that no retry repairs", async () => {
  await expect(followed([])).rejects.toThrow("no further answer");
});

test("skips frames without id", async () => {
  const seen = await followed([
    () => new Response(body("event: gateway.draining\nretry: 100\n\n", event(1, "run.failed"))),
  ]);
  expect(seen.events.map((found) => found.type)).toEqual(["run.failed"]);
});
