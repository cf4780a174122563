/** Finds text that has become markup. */

import { expect, type Page } from "@playwright/test";

/** Asserts that no script of a payload ran, and that no payload became an element or an address. */
export async function assertInert(page: Page): Promise<void> {
  const found = await page.evaluate(() => {
    const forbidden =
      "iframe, object, embed, base, math, img, video, audio, body style, body script, foreignObject, animate, set, use, " +
      "template, marquee, [srcdoc], [formaction], [http-equiv], body link";
    const isOwn = (address: string) => new URL(address, location.href).origin === location.origin;
    const faults = [...document.querySelectorAll("*")].flatMap((element) => {
      const found = element.getAttributeNames().filter((name) => name.startsWith("on"));
      if (element.matches(forbidden)) found.push("element");
      const href = element.getAttribute("href") ?? element.getAttribute("action");
      if (href !== null && !isOwn(href) && !/^https?:\/\//.test(href)) found.push(`address ${href}`);
      if (/url|expression/i.test(element.getAttribute("style") ?? "")) found.push("style");
      return found.map((fault) => `${fault}: ${element.outerHTML.slice(0, 200)}`);
    });
    return { attacked: (window as { attacked?: number }).attacked, faults };
  });
  expect(found, page.url()).toEqual({ attacked: undefined, faults: [] });
}
