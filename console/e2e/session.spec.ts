/** Sign-in: where the key is, and where it is not. */

import { expect, test } from "./support/test.ts";
import { open, views } from "./support/views.ts";

test("link signs in and leaves no key in the address", async ({ page, gateway }) => {
  await page.goto(`${gateway.url}/console/runs?statuses=failed#key=${gateway.key}`);
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Runs");
  await expect(page).toHaveURL(`${gateway.url}/console/runs?statuses=failed`);
  expect(await page.evaluate(() => Object.values(sessionStorage))).toContain(gateway.key);
  // Neither the address nor an entry of the history has it.
  await page.goto(`${gateway.url}/console/inbox`);
  await page.goBack();
  await expect(page).toHaveURL(`${gateway.url}/console/runs?statuses=failed`);
});

test("root of the gateway leads to the sign-in form", async ({ page, gateway }) => {
  await page.goto(gateway.url);
  await expect(page).toHaveURL(`${gateway.url}/console/`);
  await page.getByLabel("API key").fill(gateway.key);
  await page.getByRole("button", { name: "Sign in" }).click();
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Runs");
});

test("wrong key returns to the form with the gateway's words", async ({ page, gateway, watch }) => {
  watch.expected.push(/status of 401/);
  const refused = await fetch(`${gateway.url}/v1/runs`, { headers: { authorization: "Bearer rnl_wrong" } });
  const { message } = (await refused.json()).error;
  await page.goto(`${gateway.url}/console/#key=rnl_wrong`);
  await expect(page.getByRole("alert")).toContainText(message);
  await expect(page.getByLabel("API key")).toBeVisible();
});

test("other tabs and signed-out tabs have no key", async ({ signedIn, gateway }) => {
  const other = await signedIn.context().newPage();
  await other.goto(`${gateway.url}/console/runs`);
  await expect(other.getByLabel("API key")).toBeVisible();
  await signedIn.getByRole("button", { name: "Sign out" }).click();
  await expect(signedIn.getByLabel("API key")).toBeVisible();
  expect(await signedIn.evaluate(() => sessionStorage.length)).toBe(0);
});

test("key of role client sees its runs without errors", async ({ page, gateway, watch }) => {
  // The page finds out by a 403 that the admin API is closed.
  watch.expected.push(/status of 403/);
  const { key } = await gateway.call("/v1/api-keys", { name: "client", role: "client" });
  const run = await gateway.finish("for a client");
  await page.goto(`${gateway.url}/console/runs/${run.run_id}#key=${key}`);
  await expect(page.getByRole("heading", { level: 1 })).toContainText("for a client");
  for (const tab of await page.getByRole("tab").all()) {
    await tab.click();
    await expect(page.getByRole("tabpanel")).toBeVisible();
    await expect(page.getByRole("alert")).toHaveCount(0);
  }
});

for (const role of ["viewer", "operator"]) {
  test(`key of role ${role} opens every view without a refusal`, async ({ page, gateway, watch }) => {
    test.setTimeout(200_000);
    watch.expected.push(/status of 404/);
    const refused: string[] = [];
    page.on("response", (response) => {
      if (response.status() === 403) refused.push(`${page.url()}: ${response.url()}`);
    });
    const { key } = await gateway.call("/v1/api-keys", { name: role, role });
    await page.goto(`${gateway.url}/console/#key=${key}`);
    await expect(page.getByRole("navigation").first()).toBeVisible();
    for (const view of await views(page, gateway)) await open(page, gateway, view);
    expect(refused).toEqual([]);
  });
}

test("first view is at most 300 KiB", async ({ page, gateway }) => {
  const sizes: Promise<number>[] = [];
  page.on("response", (response) => {
    const isFile = response.url().startsWith(`${gateway.url}/console/`);
    if (isFile)
      sizes.push(
        response
          .request()
          .sizes()
          .then((sizes) => sizes.responseBodySize),
      );
  });
  const answer = await page.goto(`${gateway.url}/console/#key=${gateway.key}`);
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Runs");
  expect(answer?.headers()["content-encoding"]).toBe("br");
  const total = (await Promise.all(sizes)).reduce((sum, size) => sum + size, 0);
  expect(total).toBeGreaterThan(10_000);
  expect(total).toBeLessThan(300 * 1024);
});
