/** Decoder of server-sent events. */

import { RunnelError } from "./errors.js";

/** `id` is empty for events that are not part of the ledger. */
export interface ServerSentEvent {
  event: string;
  id: string;
  data: string;
}

/** One event of a run has 1 MiB at most, one of a model 16 MiB. */
export const MAX_EVENT_LENGTH = 20 * 1024 * 1024;

/**
 * The events of a body. An unfinished event at its end is dropped: it may be cut. `onData` is called for each
 * piece. Ending the iteration cancels the body.
 */
export async function* decode(
  body: ReadableStream<Uint8Array>,
  onData: () => void = () => {},
): AsyncGenerator<ServerSentEvent, void, undefined> {
  let event = { event: "message", id: "", data: [] as string[] };
  let length = 0;
  for await (const line of lines(body, onData)) {
    if (line === "") {
      if (event.data.length > 0) yield { ...event, data: event.data.join("\n") };
      event = { event: "message", id: "", data: [] };
      length = 0;
      continue;
    }
    length += line.length + 1;
    if (length > MAX_EVENT_LENGTH) throw tooLarge();
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") event.data.push(value);
    else if (name === "event") event.event = value;
    else if (name === "id") event.id = value;
  }
}

async function* lines(body: ReadableStream<Uint8Array>, onData: () => void): AsyncGenerator<string, void, undefined> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    while (true) {
      const { value, done } = await reader.read();
      if (done) return;
      onData();
      // `stream`: a character may be split between two pieces.
      const parts = decoder.decode(value, { stream: true }).split("\n");
      for (const part of parts.slice(0, -1)) {
        yield (rest + part).replace(/\r$/, "");
        rest = "";
      }
      rest += parts.at(-1);
      // The unfinished line counts too: a body without line ends must not fill the memory.
      if (rest.length > MAX_EVENT_LENGTH) throw tooLarge();
    }
  } finally {
    // Closes the connection if the caller leaves the loop early. A cancel of a failed body repeats its error.
    await reader.cancel().catch(() => {});
  }
}

function tooLarge(): RunnelError {
  return new RunnelError(`an event of the stream has more than ${MAX_EVENT_LENGTH} characters`);
}
