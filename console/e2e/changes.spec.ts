/** Who changed what: changes of the workspace with their authors and values, filters and pages. */

import { expect, test, violations } from "./support/test.ts";

test("change is found by its object and shows its values", async ({ signedIn, gateway }) => {
  const spec = { name: crypto.randomUUID(), agent: "scripted", every: "6h" };
  const schedule = await gateway.call("/v1/schedules", spec);
  await gateway.call(`/v1/schedules/${schedule.id}/pause`, {});
  await signedIn.goto(`${gateway.url}/console/changes`);
  const items = signedIn.getByRole("main").getByRole("listitem");
  const own = items.filter({ hasText: spec.name });
  await expect(own).toHaveCount(2);
  // Newest first.
  await expect(own.first()).toContainText("Changed schedule");
  await own.first().locator("summary").click();
  await expect(own.first()).toContainText("+ /paused_at:");
  await own.last().locator("summary").click();
  await expect(own.last()).toContainText('"every": "6h"');
  expect(await violations(signedIn)).toEqual([]);
  await own.first().getByRole("link", { name: "All its changes" }).click();
  await expect(signedIn).toHaveURL(new RegExp(`kind=schedule&object_id=${schedule.id}`));
  await expect(items).toHaveCount(2);
  await signedIn.getByRole("combobox", { name: "Order" }).selectOption("oldest");
  await expect(items.first()).toContainText("Created schedule");
  await signedIn.goBack();
  await expect(items.first()).toContainText("Changed schedule");
  await items.first().getByRole("link", { name: "Open" }).click();
  await expect(signedIn.getByRole("heading", { level: 1 })).toHaveText(spec.name);
  await signedIn.getByRole("link", { name: "All its changes" }).click();
  await expect(items).toHaveCount(2);
});

test("changes are filtered by kind, author and time", async ({ signedIn, gateway }) => {
  const own = await gateway.call("/v1/whoami");
  const agent = {
    name: crypto.randomUUID(),
    event_types: ["test.never"],
    runner_id: "plugin:test/scripted/default",
  };
  const { id } = await gateway.call("/v1/agents", agent);
  await signedIn.goto(`${gateway.url}/console/changes`);
  const items = signedIn.getByRole("main").getByRole("listitem");
  await signedIn.getByRole("combobox", { name: "Kind" }).selectOption("agent");
  await expect(signedIn).toHaveURL(/kind=agent/);
  await expect(items.filter({ hasText: agent.name })).toHaveCount(1);
  await expect(items.filter({ hasNotText: "agent" })).toHaveCount(0);
  await signedIn.getByRole("button", { name: "the configuration file" }).click();
  await expect(signedIn).toHaveURL(/actor=config/);
  await expect(items.filter({ hasText: "scripted" }).first()).toContainText("by the configuration file");
  await expect(items.filter({ hasText: agent.name })).toHaveCount(0);
  await signedIn.goto(`${gateway.url}/console/changes?object_id=${id}`);
  await items.first().getByRole("link", { name: "All by this key" }).click();
  await expect(signedIn).toHaveURL(new RegExp(`actor=${own.id}`));
  await expect(items.filter({ hasText: agent.name })).toHaveCount(1);
  await signedIn.goto(`${gateway.url}/console/changes?since=4000000000`);
  await expect(signedIn.getByRole("main")).toContainText("No change matches these filters.");
  await expect(signedIn.getByLabel("Changed after")).toHaveValue(/^2096-/);
  await signedIn.getByRole("button", { name: "Clear filters" }).click();
  await expect(signedIn).toHaveURL(`${gateway.url}/console/changes`);
});

test("older changes are on the next page", async ({ signedIn, gateway }) => {
  const { id } = await gateway.call("/v1/schedules", {
    name: crypto.randomUUID(),
    agent: "scripted",
    every: "6h",
  });
  for (let times = 0; times < 26; times += 1) {
    await gateway.call(`/v1/schedules/${id}/pause`, {});
    await gateway.call(`/v1/schedules/${id}/resume`, {});
  }
  await signedIn.goto(`${gateway.url}/console/changes?object_id=${id}`);
  const items = signedIn.getByRole("main").getByRole("listitem");
  await expect(items).toHaveCount(30);
  await signedIn.getByRole("button", { name: "Load more" }).click();
  await expect(items).toHaveCount(53);
  await expect(items.last()).toContainText("Created");
  await expect(signedIn.getByRole("button", { name: "Load more" })).toHaveCount(0);
});
