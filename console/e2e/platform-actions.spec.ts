/** Platform actions: their state, live, in the list and on the page of their run. */

import { expect, test } from "./support/test.ts";

test("actions of a run show their state as it changes", async ({ signedIn, gateway }) => {
  const run = await gateway.act();
  await signedIn.goto(`${gateway.url}/console/runs/${run.run_id}`);
  const section = signedIn.getByRole("region", { name: "Platform actions" });
  const edit = section.getByRole("row").filter({ hasText: "message.edit" });
  await expect(edit).toContainText("open");
  await expect(section.getByRole("row").filter({ hasText: "message.recall" })).toContainText(
    "waits for approval",
  );
  const found = await gateway.call(`/v1/actions?run_id=${run.run_id}&status=open`);
  const path = `/v1/actions/${found.items[0].id}`;
  const { claim_token } = await gateway.call(`${path}/claim`, {});
  await expect(edit).toContainText("claimed");
  const error = { code: "unsupported", message: "no edits here" };
  await gateway.call(`${path}/result`, { claim_token, status: "failed", error });
  await expect(edit).toContainText("no edits here");
  await edit.getByText("Target, payload and output").click();
  await expect(edit).toContainText("Your table is booked.");
});

test("actions are filtered by status and agent in the address", async ({ signedIn, gateway }) => {
  const run = await gateway.act();
  await signedIn.goto(`${gateway.url}/console/actions`);
  await signedIn.getByRole("button", { name: "waits for approval" }).click();
  await expect(signedIn).toHaveURL(/status=awaiting_approval/);
  await signedIn.getByRole("combobox", { name: "Agent" }).selectOption("acting");
  await expect(signedIn).toHaveURL(new RegExp(`agent_id=${run.agent_id}`));
  const row = signedIn.getByRole("row").filter({ hasText: "message.recall" }).first();
  await expect(row).toContainText("Inbox");
  await expect(signedIn.getByRole("main")).not.toContainText("message.edit");
  await signedIn.getByRole("button", { name: "declined" }).click();
  await expect(signedIn.getByRole("main")).toContainText("No platform action matches");
});
