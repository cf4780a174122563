/** Sign-in with a real OpenID provider: the way there and back, and answers that open nothing. */

import { test as base } from "@playwright/test";
import { Gateway } from "./support/gateway.ts";
import { Provider } from "./support/provider.ts";
import { expect, type Page, type PageFixtures, pageFixtures } from "./support/test.ts";

const test = base.extend<PageFixtures, { gateway: Gateway; provider: Provider }>({
  provider: [
    // biome-ignore lint/correctness/noEmptyPattern: Playwright reads the names of fixtures from the pattern
    async ({}, use) => {
      const provider = await Provider.start();
      await use(provider);
      provider.stop();
    },
    { scope: "worker" },
  ],
  gateway: [
    async ({ provider }, use) => {
      const gateway = await Gateway.start(() => ({ "runnel-dev.toml": provider.settings() }));
      await use(gateway);
      await gateway.stop();
    },
    { scope: "worker", timeout: 60_000 },
  ],
  ...pageFixtures,
});

test.beforeEach(({ watch, provider }) => {
  watch.origins.push(provider.url);
});

/** Leaves for the provider, whose form then waits for a name. */
async function leave(page: Page, gateway: Gateway, provider: Provider): Promise<void> {
  await page.goto(`${gateway.url}/console/runs?statuses=failed`);
  await page.getByRole("button", { name: `Sign in with ${provider.host}` }).click();
  await expect(page.locator("input[name=login]")).toBeVisible();
}

async function enter(page: Page, name: string): Promise<void> {
  await page.locator("input[name=login]").fill(name);
  await page.locator("input[name=password]").fill("x");
  await page.getByRole("button", { name: "Sign-in" }).click();
  await page.getByRole("button", { name: "Continue" }).click();
}

/** Items of the page in the storage of the tab. The router has its own. */
async function stored(page: Page): Promise<Record<string, string>> {
  const items = await page.evaluate(() => Object.entries(sessionStorage));
  return Object.fromEntries(items.filter(([name]) => name.startsWith("runnel.")));
}

/** Addresses of the tab's history, also those that were left. */
async function addresses(page: Page): Promise<string[]> {
  const session = await page.context().newCDPSession(page);
  const { entries } = await session.send("Page.getNavigationHistory");
  return entries.map((entry) => entry.url);
}

test("provider signs in and sign-out ends the session", async ({ page, gateway, provider }) => {
  const policies: string[] = [];
  page.on("response", (response) => {
    const policy = response.headers()["content-security-policy"] ?? "";
    if (response.url().startsWith(`${gateway.url}/console/`) && policy.includes(provider.url))
      policies.push(new URL(response.url()).pathname);
  });
  await leave(page, gateway, provider);
  await enter(page, "ana");
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Runs");
  await expect(page).toHaveURL(`${gateway.url}/console/runs?statuses=failed`);
  // Only the page of the return may connect to the provider.
  expect(policies).toEqual(["/console/sign-in"]);
  const session = await stored(page);
  expect(Object.keys(session).sort()).toEqual(["runnel.key", "runnel.session"]);
  for (const address of await addresses(page)) expect(address).not.toMatch(/[?&#](code|id_token)=/);
  const whoami = () =>
    fetch(`${gateway.url}/v1/whoami`, { headers: { authorization: `Bearer ${session["runnel.key"]}` } });
  expect((await (await whoami()).json()).name).toBe("ana@example.com");
  await page.getByRole("button", { name: "Sign out" }).click();
  await expect(page.getByLabel("API key")).toBeVisible();
  await expect(page.getByRole("alert")).toHaveCount(0);
  expect((await whoami()).status).toBe(401);
  expect(await stored(page)).toEqual({});
});

test("answer with a wrong state opens nothing", async ({ page, gateway, provider }) => {
  const exchanges: string[] = [];
  page.on("request", (request) => {
    if (request.url() === `${provider.url}/token`) exchanges.push(request.url());
  });
  await leave(page, gateway, provider);
  // Twice: during a sign-in of this tab, and without one.
  for (const query of ["code=stolen&state=wrong", "error=x&error_description=call+us&state=wrong"]) {
    await page.goto(`${gateway.url}/console/sign-in?${query}`);
    await expect(page.getByRole("alert")).toContainText("did not begin in this tab");
    await expect(page.getByRole("alert")).not.toContainText("call us");
    await expect(page).not.toHaveURL(/state=/);
    expect(await stored(page)).toEqual({});
  }
  expect(exchanges).toEqual([]);
});

test("refusal of the provider is shown with the next step", async ({ page, gateway, provider }) => {
  await leave(page, gateway, provider);
  await page.getByRole("link", { name: "Cancel" }).click();
  const alert = page.getByRole("alert");
  await expect(alert).toContainText(`${provider.host} refused the sign-in`);
  await expect(alert).toContainText("Sign in again");
  await expect(page).toHaveURL(`${gateway.url}/console/runs?statuses=failed`);
  expect(await stored(page)).toEqual({});
});

test("person without a role returns to the form", async ({ page, gateway, provider, watch }) => {
  watch.expected.push(/status of 403/);
  await leave(page, gateway, provider);
  await enter(page, "bob");
  await expect(page.getByRole("alert")).toContainText("An admin of the gateway or of the provider");
  await expect(page.getByLabel("API key")).toBeVisible();
  expect(await stored(page)).toEqual({});
});
