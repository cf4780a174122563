/** Every view, by its address: WCAG, both themes, a phone's width, and both languages. */

import { expect, overflow, test, violations } from "./support/test.ts";
import { open, views } from "./support/views.ts";

// Contrast depends on the theme and layout on width and words, so two combinations show all three. English has the
// longer words.
for (const { colorScheme, width, locale } of [
  { colorScheme: "light", width: 1280, locale: "zh-CN" },
  { colorScheme: "dark", width: 360, locale: "en-US" },
] as const) {
  test.describe(`${colorScheme}, ${width} px, ${locale}`, () => {
    test.use({
      colorScheme,
      locale,
      viewport: { width, height: 800 },
      contextOptions: { reducedMotion: "reduce" },
    });

    test("views are accessible and fit", async ({ signedIn, gateway, watch }, info) => {
      test.setTimeout(240_000);
      watch.expected.push(/status of 404/);
      for (const view of await views(signedIn, gateway)) {
        await test.step(view.name, async () => {
          await open(signedIn, gateway, view);
          await signedIn.screenshot({ path: info.outputPath(`${view.name}.png`), fullPage: true });
          expect.soft(await violations(signedIn), view.name).toEqual([]);
          expect.soft(await overflow(signedIn), `${view.name} is wider than the window`).toBe(0);
        });
      }
    });

    test("sign-in form is accessible", async ({ page, gateway }) => {
      await page.goto(`${gateway.url}/console/`);
      await expect(page.locator("#key")).toBeVisible();
      expect(await violations(page)).toEqual([]);
      expect(await overflow(page)).toBe(0);
    });
  });
}

test("themes follow the system", async ({ signedIn }) => {
  const background = () =>
    signedIn.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
  const body = () => signedIn.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await signedIn.emulateMedia({ colorScheme: "light" });
  const light = [await background(), await body()];
  await signedIn.emulateMedia({ colorScheme: "dark" });
  expect([await background(), await body()]).not.toEqual(light);
});

test("language is Chinese by choice, and stays", async ({ signedIn, gateway }) => {
  await gateway.finish("language");
  await signedIn.getByRole("combobox", { name: "Language" }).selectOption("zh");
  await expect(signedIn.locator("html")).toHaveAttribute("lang", /^zh/);
  await expect(signedIn.getByRole("heading", { level: 1 })).toHaveText("运行");
  await signedIn.reload();
  await expect(signedIn.getByRole("heading", { level: 1 })).toHaveText("运行");
  await signedIn.getByRole("link", { name: "待办" }).click();
  await expect(signedIn.getByRole("heading", { level: 1 })).toHaveText("待办");
  expect(await violations(signedIn)).toEqual([]);
});

test("filters are in the address, and the back button restores them", async ({ signedIn }) => {
  await signedIn.getByRole("button", { name: "In flight" }).click();
  await expect(signedIn).toHaveURL(/statuses=.*running/);
  await signedIn.getByRole("button", { name: "All", exact: true }).click();
  await expect(signedIn).not.toHaveURL(/statuses/);
  await signedIn.goBack();
  await expect(signedIn.getByRole("button", { name: "In flight" })).toHaveAttribute("aria-pressed", "true");
});

test.describe("browser in Chinese", () => {
  test.use({ locale: "zh-CN" });
  test("language is the browser's", async ({ page, gateway }) => {
    await page.goto(`${gateway.url}/console/`);
    await expect(page.getByLabel("API 密钥")).toBeVisible();
    await expect(page.locator("html")).toHaveAttribute("lang", /^zh/);
  });
});

test("API page is linked", async ({ signedIn, gateway }) => {
  const link = signedIn.getByRole("link", { name: /docs|API/i });
  const target = new URL((await link.getAttribute("href")) ?? "", signedIn.url());
  expect(target.pathname.startsWith("/docs")).toBe(true);
  expect((await fetch(new URL(target, gateway.url))).ok).toBe(true);
});
