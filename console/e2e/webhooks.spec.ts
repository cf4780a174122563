/** Webhooks: the secret that is shown once, changes, test calls, and deliveries that are sent again. */

import { expect, test, violations } from "./support/test.ts";

test("webhook is created, changed and deleted", async ({ signedIn, gateway, watch }) => {
  watch.expected.push(/status of 40\d/);
  await signedIn.goto(`${gateway.url}/console/webhooks`);
  await signedIn.getByRole("link", { name: "New webhook" }).click();
  await signedIn.getByLabel("Name").fill("x".repeat(200));
  await signedIn.getByLabel("URL").fill(`${gateway.runner.url}/hooks`);
  await signedIn.getByRole("checkbox", { name: "run.cancelled" }).check();
  await signedIn.getByRole("button", { name: "Create webhook" }).click();
  const name = signedIn.getByLabel("Name");
  await expect(name).toBeFocused();
  await expect(name).toHaveAccessibleDescription(/1 to 128 bytes/);
  await name.fill("made here");
  await signedIn.getByRole("button", { name: "Create webhook" }).click();
  await expect(signedIn.getByRole("heading", { level: 1 })).toHaveText("made here");
  await expect(signedIn.getByText(/^whsec_/)).toBeVisible();
  expect(await violations(signedIn)).toEqual([]);

  const id = new URL(signedIn.url()).pathname.split("/").at(-1);
  const path = `/v1/webhooks/${id}`;
  expect((await gateway.call(path)).events).toEqual(["run.completed", "run.failed", "run.cancelled"]);
  await signedIn.reload();
  await expect(signedIn.getByText(/^whsec_/)).toHaveCount(0);
  await signedIn.getByRole("checkbox", { name: "enabled" }).uncheck();
  await expect(signedIn.getByRole("main")).toContainText("Unsaved changes.");
  await signedIn.getByRole("button", { name: "Save" }).click();
  await expect(signedIn.getByRole("main")).toContainText("Saved.");
  expect((await gateway.call(path)).enabled).toBe(false);

  await signedIn.getByRole("button", { name: "New secret…" }).click();
  await signedIn.getByRole("dialog").getByRole("button", { name: "Create the secret" }).click();
  await expect(signedIn.getByText(/^whsec_/)).toBeVisible();
  await expect(signedIn.getByText("Previous secret signs until")).toBeVisible();

  await signedIn.getByRole("button", { name: "Delete…" }).click();
  await signedIn.getByRole("dialog").getByRole("button", { name: "Delete the webhook" }).click();
  await expect(signedIn).toHaveURL(`${gateway.url}/console/webhooks`);
  const { items } = await gateway.call("/v1/webhooks");
  expect(items.map((webhook: { id: string }) => webhook.id)).not.toContain(id);
});

test("test call and deliveries show the answer of the receiver", async ({ signedIn, gateway }) => {
  const { runner } = gateway;
  const webhook = await gateway.call("/v1/webhooks", {
    name: "receiver",
    url: `${runner.url}/hooks`,
    events: ["run.completed"],
  });
  await signedIn.goto(`${gateway.url}/console/webhooks/${webhook.id}`);
  await signedIn.getByRole("button", { name: "Send a test" }).click();
  await expect(signedIn.getByRole("status").filter({ hasText: "200, " })).toBeVisible();
  expect(runner.hooks).toContain("webhook.test");

  runner.hookStatus = 503;
  await signedIn.getByRole("button", { name: "Send a test" }).click();
  await expect(signedIn.getByRole("status").filter({ hasText: "not delivered 503" })).toBeVisible();
  runner.hookStatus = 200;

  const run = await gateway.finish("to the webhook");
  await signedIn.getByRole("button", { name: "delivered" }).click();
  await expect(signedIn).toHaveURL(/status=delivered/);
  const row = signedIn.getByRole("row").filter({ hasText: "run.completed" });
  await expect(row).toContainText("1 / 12");
  expect(await violations(signedIn)).toEqual([]);
  const received = runner.hooks.length;
  await row.getByRole("button", { name: "Send again" }).click();
  await expect.poll(() => runner.hooks.length).toBeGreaterThan(received);
  await signedIn.getByLabel("Delivered ones since").fill("2026-01-01T00:00");
  await signedIn.getByRole("button", { name: "Send again" }).first().click();
  await expect(signedIn.getByText("deliveries are pending again")).toBeVisible();
  await row.getByRole("link").click();
  await expect(signedIn).toHaveURL(new RegExp(`/runs/${run.run_id}$`));
});

test("viewer reads a webhook and its deliveries only", async ({ page, gateway }) => {
  const { key } = await gateway.call("/v1/api-keys", { name: "reader", role: "viewer" });
  const webhook = await gateway.call("/v1/webhooks", {
    name: "read",
    url: `${gateway.runner.url}/hooks`,
    events: ["run.completed"],
  });
  await gateway.finish("read by a viewer");
  await page.goto(`${gateway.url}/console/webhooks/${webhook.id}#key=${key}`);
  await expect(page.getByRole("row").filter({ hasText: "delivered" })).toBeVisible();
  const buttons = page.getByRole("main").getByRole("button");
  await expect(buttons).toHaveText(["All", "pending", "delivered", "dead"]);
  await page.goto(`${gateway.url}/console/webhooks/new`);
  await expect(page.getByRole("main")).toContainText("does not allow changes");
});
