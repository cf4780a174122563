/** Use by day: the plot, its tables, the period in the address, and the way from a refused run to its budget. */

import { failed } from "./support/runner.ts";
import { expect, test, violations } from "./support/test.ts";

test("usage is shown by agent and by model, with the choice in the address", async ({
  signedIn,
  gateway,
}) => {
  const question = await gateway.plan();
  const run = await gateway.until(`/v1/runs/${question.run_id}`, ({ status }) => status === "completed");
  await gateway.until("/v1/usage", ({ total }) => total.calls > 0);
  await signedIn.goto(`${gateway.url}/console/usage`);
  const row = signedIn.getByRole("row").filter({ hasText: run.agent_name });
  await expect(row).toBeVisible();
  await expect(signedIn.getByRole("img", { name: /Cost by day and Agent/ })).toBeVisible();
  await signedIn.getByRole("combobox", { name: "Group by" }).selectOption("model");
  await expect(signedIn).toHaveURL(/by=model/);
  await expect(signedIn.getByRole("columnheader", { name: "Model" })).toBeVisible();
  await signedIn.getByRole("combobox", { name: "Measure" }).selectOption("tokens");
  await expect(signedIn.getByRole("img", { name: /Tokens by day and Model/ })).toBeVisible();
  expect(await violations(signedIn)).toEqual([]);
  await signedIn.goBack();
  await signedIn.goBack();
  await expect(row).toBeVisible();
  await row.getByRole("link").press("Enter");
  await expect(signedIn).toHaveURL(new RegExp(`agent_id=${run.agent_id}`));
  await expect(signedIn.getByRole("main")).toContainText("Put a note");
});

test("periods are dates, and a period without calls says so", async ({ signedIn, gateway, watch }) => {
  watch.expected.push(/status of 400/);
  await signedIn.goto(`${gateway.url}/console/usage?days=7`);
  await expect(signedIn.getByRole("button", { name: "7 days" })).toHaveAttribute("aria-pressed", "true");
  await signedIn.getByLabel("First day").fill("2026-01-05");
  await signedIn.getByLabel("Last day").fill("2026-01-06");
  await signedIn.getByRole("button", { name: "Apply" }).click();
  await expect(signedIn).toHaveURL(/from=2026-01-05&to=2026-01-06/);
  await expect(signedIn.getByRole("main")).toContainText("No run has used a model");
  await signedIn.getByLabel("First day").fill("2025-01-05");
  await signedIn.getByRole("button", { name: "Apply" }).click();
  await expect(signedIn.getByRole("alert")).toContainText("at most 92 days");
});

test("a run that a budget refused leads to the budget", async ({ signedIn, gateway }) => {
  const message = "the budget each-day has no cost left for this call; it resets at 2026-11-30T00:00:00Z";
  gateway.runner.on("spends", (stream) => stream.end(failed(message)));
  const run = await gateway.finish("spends");
  await signedIn.goto(`${gateway.url}/console/runs/${run.run_id}`);
  await signedIn.getByRole("link", { name: "Budget each-day" }).click();
  await expect(signedIn).toHaveURL(/\/console\/usage#budget-each-day$/);
});

test("runs are filtered by their key and reason", async ({ signedIn, gateway }) => {
  const run = await gateway.finish("by this key");
  await signedIn.goto(`${gateway.url}/console/runs?posted_by=${run.posted_by}`);
  await expect(signedIn.getByRole("main")).toContainText("by this key");
  await expect(signedIn.getByLabel("API key id")).toHaveValue(run.posted_by);
  await signedIn.getByLabel("Reason of the status").fill("no-such-reason");
  await signedIn.getByRole("button", { name: "Apply" }).click();
  await expect(signedIn).toHaveURL(/status_reason=no-such-reason/);
  await expect(signedIn.getByRole("main")).toContainText("No run matches");
});
