/** Schedules: created by a form, run now, paused, changed and deleted, with their occurrences. */

import { expect, test, violations } from "./support/test.ts";

test("schedule is created, run, paused and deleted", async ({ signedIn, gateway, watch }) => {
  watch.expected.push(/status of 40\d/);
  await signedIn.goto(`${gateway.url}/console/schedules`);
  await signedIn.getByRole("link", { name: "New schedule" }).click();
  await signedIn.getByLabel("Name").fill("made here");
  await signedIn.getByRole("combobox", { name: "Agent" }).selectOption("scripted");
  await signedIn.getByLabel("Cron expression").fill("sometimes");
  await signedIn.getByLabel("Time zone").fill("Europe/Berlin");
  await signedIn.getByLabel("Message").fill("Write the digest.");
  await signedIn.getByRole("button", { name: "Create schedule" }).click();
  const cron = signedIn.getByLabel("Cron expression");
  await expect(cron).toBeFocused();
  await expect(cron).toHaveAccessibleDescription(/five fields/);
  await cron.fill("0 2 * * *");
  await signedIn.getByRole("button", { name: "Create schedule" }).click();
  await expect(signedIn.getByRole("heading", { level: 1 })).toHaveText("made here");
  await expect(signedIn.getByRole("main")).toContainText("0 2 * * * Europe/Berlin");
  await expect(signedIn.getByText("2:00:00 AM GMT").first()).toBeVisible();
  expect(await violations(signedIn)).toEqual([]);

  await signedIn.getByRole("button", { name: "Run now" }).click();
  const row = signedIn.getByRole("row").filter({ hasText: "by hand" });
  await expect(row).toContainText("triggered");
  await expect(row).toContainText("completed");

  const id = new URL(signedIn.url()).pathname.split("/").at(-1);
  const path = `/v1/schedules/${id}`;
  await signedIn.getByRole("button", { name: "Pause" }).click();
  await expect(signedIn.getByRole("button", { name: "Resume" })).toBeVisible();
  expect((await gateway.call(path)).next_due).toEqual([]);
  await signedIn.getByRole("button", { name: "Resume" }).click();
  await expect(signedIn.getByRole("button", { name: "Pause" })).toBeVisible();

  await signedIn.getByLabel("Message").fill("Write it shorter.");
  await signedIn.getByRole("button", { name: "Save" }).click();
  await expect(signedIn.getByRole("main")).toContainText("Saved.");
  expect((await gateway.call(path)).event.input.text).toBe("Write it shorter.");

  await signedIn.getByRole("button", { name: "Delete…" }).click();
  await signedIn.getByRole("dialog").getByRole("button", { name: "Delete the schedule" }).click();
  await expect(signedIn).toHaveURL(`${gateway.url}/console/schedules`);
  const { items } = await gateway.call("/v1/schedules");
  expect(items.map((schedule: { id: string }) => schedule.id)).not.toContain(id);
});

test("viewer reads a schedule only", async ({ page, gateway }) => {
  const { key } = await gateway.call("/v1/api-keys", { name: "reader", role: "viewer" });
  const spec = { name: "read", agent: "scripted", every: "6h" };
  const schedule = await gateway.call("/v1/schedules", spec);
  await page.goto(`${gateway.url}/console/schedules/${schedule.id}#key=${key}`);
  await expect(page.getByRole("main")).toContainText("It has not been due yet.");
  await expect(page.getByRole("main")).toContainText("6h");
  await expect(page.getByRole("main").getByRole("button")).toHaveCount(0);
});
