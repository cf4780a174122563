/** A run of 100,000 events: time to open it, and frames while its events scroll. */

import { completed, delta } from "../support/runner.ts";
import { test } from "../support/test.ts";
import { cpuSeconds, openMs, rank, summary } from "./timing.ts";

const EVENTS = 100_000;
const OPENED = 7;
const SECONDS = 5;

/** Pixels of one frame, as a hand would move the list. */
const SPEEDS = { "wheel, 60 px": 60, "fast wheel, 600 px": 600, "scroll bar, 30 000 px": 30_000 };

test("events", async ({ signedIn, gateway }) => {
  gateway.runner.on("talks", async (stream) => {
    for (let n = 1; n < EVENTS; n += 1) await stream.drained(delta(`Word ${n} of a long answer. `));
    stream.end(completed);
  });
  const run = await gateway.finish("talks", { conversation: { conversation_id: "talks" } });
  console.log(`\nrun of ${run.last_sequence} events, ${run.status}`);
  const url = `${gateway.url}/console/runs/${run.run_id}?tab=events`;
  const times: number[] = [];
  for (let at = 0; at < OPENED; at += 1)
    times.push(await openMs(signedIn, url, ".event button.line .summary", 10));
  console.log(`open, median and longest of ${OPENED}: ${summary(times)}`);
  for (const [name, pixels] of Object.entries(SPEEDS)) {
    const before = await cpuSeconds(signedIn);
    const frames = await signedIn.evaluate(scroll, { pixels, ms: SECONDS * 1000 });
    const used = (1000 * ((await cpuSeconds(signedIn)) - before)) / frames.length;
    const rate = (1000 * frames.length) / frames.reduce((sum, ms) => sum + ms, 0);
    const [late, longest] = [rank(frames, 0.99), rank(frames, 1)];
    console.log(
      `${name}: ${rate.toFixed(1)} frames/s, p99 ${late.toFixed(1)} ms, longest ${longest.toFixed(1)} ms, ` +
        `CPU ${used.toFixed(1)} ms a frame`,
    );
  }
});

/** Scrolls up from the end and back at the edges, and returns the times between frames. */
function scroll({ pixels, ms }: { pixels: number; ms: number }): Promise<number[]> {
  const list = document.querySelector(".virtual");
  if (list === null) throw new Error("no list");
  return new Promise((done) => {
    const times: number[] = [];
    const began = performance.now();
    let last = began;
    let step = -pixels;
    const frame = (now: number) => {
      times.push(now - last);
      last = now;
      if (now - began > ms) return done(times.slice(1));
      if (list.scrollTop + step < 0) step = pixels;
      if (list.scrollTop + step > list.scrollHeight - list.clientHeight) step = -pixels;
      list.scrollTop += step;
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  });
}
