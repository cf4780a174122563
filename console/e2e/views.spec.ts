/** Every view, by its address: WCAG, both themes, a phone's width, and both languages. */

import type { Gateway } from "./support/gateway.ts";
import { completed, delta, failed, message, question } from "./support/runner.ts";
import { expect, overflow, type Page, test, violations } from "./support/test.ts";

const TABS = ["events", "calls", "grants", "usage", "rejections", "raw"];
const LONG = "averylongwordwithoutanyspace".repeat(20);

interface View {
  name: string;
  path: string;
  /** Text that shows that the view has its data. */
  shows: string;
}

/** Runs of each kind, and the views that show them. */
async function views(gateway: Gateway): Promise<View[]> {
  gateway.runner.on("fails", (stream) => stream.end(delta("half"), failed(`it broke: ${LONG}`)));
  gateway.runner.on("asks", (stream) =>
    stream.end(question("Which table?"), message("A question."), completed),
  );
  const good = await gateway.finish(`all is well ${LONG}`);
  const bad = await gateway.finish("fails");
  const asking = await gateway.finish("asks");
  const plan = await gateway.plan();
  const run = (name: string, path: string, shows: string): View => ({ name, path: `/runs/${path}`, shows });
  return [
    { name: "runs", path: "/runs", shows: "all is well" },
    { name: "runs-none", path: "/runs?conversation_id=no-such", shows: "No run matches" },
    { name: "inbox", path: "/inbox", shows: "Which table?" },
    ...TABS.map((tab) => run(`run-${tab}`, `${good.run_id}?tab=${tab}`, "all is well")),
    run("run-failed", bad.run_id, "it broke"),
    run("run-asking", asking.run_id, "Which table?"),
    run("run-plan", plan.run_id, plan.request.title),
    run("run-plan-calls", `${plan.run_id}?tab=calls`, "model"),
    ...["tools", "mcp", "knowledge", "skills"].map((tab) => ({
      name: `catalogue-${tab}`,
      path: `/catalogue?tab=${tab}`,
      shows: "Catalogue",
    })),
    run("run-absent", "01a00000-0000-7000-8000-000000000000", "no"),
    { name: "not-found", path: "/no/such/view", shows: "no such page" },
  ];
}

async function open(page: Page, gateway: Gateway, view: View): Promise<void> {
  await page.goto(`${gateway.url}/console${view.path}`);
  await expect(page.getByRole("main")).toContainText(view.shows);
  await settled(page);
}

/** Waits until the page has its data. */
async function settled(page: Page): Promise<void> {
  await expect.soft(page.getByRole("heading", { level: 1 }), `heading of ${page.url()}`).not.toBeEmpty();
  await expect(page.locator(".loading")).toHaveCount(0);
}

/** Views of the navigation that are not in the list above, and the first object that each lists. */
async function linkedViews(page: Page, gateway: Gateway): Promise<View[]> {
  await page.goto(`${gateway.url}/console/`);
  await settled(page);
  const paths = (links: Element[]) => links.map((link) => new URL((link as HTMLAnchorElement).href).pathname);
  const found: View[] = [];
  for (const path of await page.getByRole("navigation").first().getByRole("link").evaluateAll(paths)) {
    const own = path.replace("/console", "");
    if (!path.startsWith("/console/") || ["/runs", "/inbox"].includes(own)) continue;
    found.push({ name: own.slice(1), path: own, shows: "" });
    await page.goto(gateway.url + path);
    await settled(page);
    const inner = await page.getByRole("main").getByRole("link").evaluateAll(paths);
    for (const below of inner.filter((link) => link.startsWith(`${path}/`)).slice(0, 2)) {
      const view = below.replace("/console", "");
      found.push({ name: view.slice(1).replaceAll(/[^a-z]+/g, "-"), path: view, shows: "" });
    }
  }
  return found;
}

// Contrast depends on the theme and layout on the width, so two combinations show both.
for (const { colorScheme, width } of [
  { colorScheme: "light", width: 1280 },
  { colorScheme: "dark", width: 360 },
] as const) {
  test(`views are accessible and fit: ${colorScheme}, ${width} px`, async ({
    signedIn,
    gateway,
    watch,
  }, info) => {
    test.setTimeout(120_000);
    watch.expected.push(/status of 404/);
    await signedIn.emulateMedia({ colorScheme, reducedMotion: "reduce" });
    await signedIn.setViewportSize({ width, height: 800 });
    for (const view of [...(await views(gateway)), ...(await linkedViews(signedIn, gateway))]) {
      await test.step(view.name, async () => {
        await open(signedIn, gateway, view);
        await signedIn.screenshot({ path: info.outputPath(`${view.name}.png`), fullPage: true });
        expect.soft(await violations(signedIn), view.name).toEqual([]);
        expect.soft(await overflow(signedIn), `${view.name} is wider than the window`).toBe(0);
      });
    }
  });

  test(`sign-in form is accessible: ${colorScheme}, ${width} px`, async ({ page, gateway }) => {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize({ width, height: 800 });
    await page.goto(`${gateway.url}/console/`);
    await expect(page.getByLabel("API key")).toBeVisible();
    expect(await violations(page)).toEqual([]);
    expect(await overflow(page)).toBe(0);
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
  test.use({ locale: "zh-CN", viewport: { width: 360, height: 740 } });
  test("views fit a phone", async ({ signedIn, gateway }) => {
    test.setTimeout(60_000);
    for (const view of await linkedViews(signedIn, gateway)) {
      await open(signedIn, gateway, view);
      expect.soft(await overflow(signedIn), `${view.name} is wider than the window`).toBe(0);
    }
  });

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
