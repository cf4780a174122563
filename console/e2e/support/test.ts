/** Fixtures: a gateway for each worker, and a page that must stay free of faults. */

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test as base, expect, type Fixtures, type Page } from "@playwright/test";
import { Gateway } from "./gateway.ts";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

interface Violation {
  id: string;
  help: string;
  nodes: { html: string }[];
}

declare global {
  interface Window {
    axe: { run(context: Document, options: object): Promise<{ violations: Violation[] }> };
  }
}

interface Watch {
  faults: string[];
  /** Messages of the browser's console that a test causes on purpose. */
  expected: RegExp[];
  /** Other origins that a test visits on purpose. */
  origins: string[];
}

export interface PageFixtures {
  watch: Watch;
  /** The page, signed in by a link as `runnel dev` prints it. */
  signedIn: Page;
}

/** Fixtures of a page on a gateway. */
export const pageFixtures: Fixtures<PageFixtures, object, { page: Page; gateway: Gateway }> = {
  // biome-ignore lint/correctness/noEmptyPattern: Playwright reads the names of fixtures from the pattern
  watch: async ({}, use) => {
    await use({ faults: [], expected: [], origins: [] });
  },
  page: async ({ page, gateway, watch }, use) => {
    // Pages of another origin load and report what they like.
    const isElsewhere = (url: string) => watch.origins.some((origin) => url.startsWith(`${origin}/`));
    page.on("console", (message) => {
      if (isElsewhere(page.url()) || isElsewhere(message.location().url)) return;
      if (!["error", "warning"].includes(message.type())) return;
      if (watch.expected.some((expected) => expected.test(message.text()))) return;
      // The form asks for the provider, and a gateway without one answers 404.
      const isOfSignIn = message.location().url === `${gateway.url}/v1/sign-in`;
      if (isOfSignIn && /status of 404/.test(message.text())) return;
      watch.faults.push(`console ${message.type()}: ${message.text()}`);
    });
    page.on("pageerror", (error) => watch.faults.push(`exception: ${error.stack ?? error}`));
    page.on("dialog", (dialog) => {
      watch.faults.push(`dialog: ${dialog.message()}`);
      void dialog.dismiss();
    });
    page.on("popup", (popup) => watch.faults.push(`window: ${popup.url()}`));
    page.on("download", (download) => watch.faults.push(`download: ${download.url()}`));
    page.on("request", (request) => {
      const url = new URL(request.url());
      const { referer } = request.headers();
      if (!request.isNavigationRequest() && isElsewhere(request.frame().url())) return;
      if (url.protocol !== "data:" && ![gateway.url, ...watch.origins].includes(url.origin))
        watch.faults.push(`foreign request: ${url}`);
      // The fragment of the first address is not part of the request.
      if ((url.pathname + url.search).includes(gateway.key)) watch.faults.push(`key in the address: ${url}`);
      if (referer && !isElsewhere(referer)) watch.faults.push(`referrer: ${referer}`);
    });
    await use(page);
    if (page.url().startsWith(gateway.url)) {
      expect(await stored(page), "no key outlives the tab").not.toContain(gateway.key);
      expect(page.url(), "no key in the address").not.toContain(gateway.key);
    }
    expect(gateway.log, "no key in the log").not.toContain(gateway.key);
    expect(watch.faults).toEqual([]);
  },
  signedIn: async ({ page, gateway }, use) => {
    await page.goto(`${gateway.url}/console/#key=${gateway.key}`);
    await expect(page.getByRole("navigation").first()).toBeVisible();
    await use(page);
  },
};

/** Names and values of all storage that other tabs or later visits can read. */
function stored(page: Page): Promise<string> {
  return page.evaluate(async () => {
    const databases = await indexedDB.databases();
    const workers = await navigator.serviceWorker?.getRegistrations();
    const found = [localStorage, document.cookie, databases, await caches.keys(), workers ?? [], name];
    return JSON.stringify(found);
  });
}

export const test = base.extend<PageFixtures, { gateway: Gateway }>({
  gateway: [
    // biome-ignore lint/correctness/noEmptyPattern: Playwright reads the names of fixtures from the pattern
    async ({}, use) => {
      const gateway = await Gateway.start();
      await use(gateway);
      await gateway.stop();
    },
    { scope: "worker", timeout: 60_000 },
  ],
  ...pageFixtures,
});

/** Rules of WCAG 2.2 AA that the page breaks, with their elements. */
export async function violations(page: Page): Promise<string[]> {
  // Outside of the page's content security policy, as the tools of a browser are.
  await page.evaluate(AXE);
  return page.evaluate(async () => {
    const runOnly = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
    const { violations } = await window.axe.run(document, { runOnly });
    return violations.map((found) => {
      const elements = found.nodes.map((node) => node.html.slice(0, 160));
      return `${found.id}: ${found.help}\n  ${elements.join("\n  ")}`;
    });
  });
}

/** Pixels by which the page is wider than its window. */
export async function overflow(page: Page): Promise<number> {
  return page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
}

export { expect, type Page };
