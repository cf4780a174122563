/** Reader of server-sent events. */

export interface Frame {
  event: string;
  /** Empty for frames that are not part of the ledger. */
  id: string;
  data: string;
}

/** Characters of one event. The gateway limits an event of a run to 1 MiB. */
const MAX_LENGTH = 4 * 1024 * 1024;

/** Frames of a body. An unfinished frame at its end is dropped: the resumed stream sends it again. */
export async function* frames(body: ReadableStream<Uint8Array>): AsyncGenerator<Frame, void, undefined> {
  let frame: Frame = { event: "message", id: "", data: "" };
  let data: string[] = [];
  let length = 0;
  for await (const line of lines(body)) {
    if (line === "") {
      if (data.length > 0) yield { ...frame, data: data.join("\n") };
      frame = { event: "message", id: "", data: "" };
      data = [];
      length = 0;
      continue;
    }
    length += line.length;
    if (length > MAX_LENGTH) throw new Error(`an event of the stream has more than ${MAX_LENGTH} characters`);
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") data.push(value);
    else if (name === "event") frame.event = value;
    else if (name === "id") frame.id = value;
  }
}

async function* lines(body: ReadableStream<Uint8Array>): AsyncGenerator<string, void, undefined> {
  const reader = body.getReader();
  // `stream`: a character may be split between two pieces.
  const decoder = new TextDecoder();
  let rest = "";
  try {
    while (true) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = parts.pop() ?? "";
      if (rest.length > MAX_LENGTH)
        throw new Error(`a line of the stream has more than ${MAX_LENGTH} characters`);
      for (const part of parts) yield part.replace(/\r$/, "");
    }
  } finally {
    // Closes the connection if the caller leaves the loop early. A failed body repeats its error here.
    await reader.cancel().catch(() => {});
  }
}
