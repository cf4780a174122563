/** Times within the page. */

import type { Page } from "@playwright/test";

/** Milliseconds from the start of a navigation until a frame shows `count` elements that `selector` matches. */
export async function openMs(page: Page, url: string, selector: string, count: number): Promise<number> {
  await page.goto(url, { waitUntil: "commit" });
  return page.evaluate(
    ([wanted, least]) =>
      new Promise<number>((shown) => {
        const look = () => {
          if (document.querySelectorAll(wanted).length < least) requestAnimationFrame(look);
          // The next frame follows after this one was painted.
          else requestAnimationFrame(() => shown(performance.now()));
        };
        look();
      }),
    [selector, count] as const,
  );
}

/** Seconds of CPU that the page's processes have used. Other work on the machine does not change them. */
export async function cpuSeconds(page: Page): Promise<number> {
  const session = await page.context().browser()?.newBrowserCDPSession();
  const found = await session?.send("SystemInfo.getProcessInfo");
  await session?.detach();
  const renderers = found?.processInfo.filter(({ type }) => type === "renderer") ?? [];
  return renderers.reduce((sum, { cpuTime }) => sum + cpuTime, 0);
}

export function rank(values: number[], part: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? Number.NaN;
}

/** Median and maximum. */
export function summary(values: number[]): string {
  const [median, most] = [rank(values, 0.5), rank(values, 1)];
  return `${median.toFixed(1).padStart(8)} ms  ${most.toFixed(1).padStart(8)} ms`;
}
