/** Sources: created by a form, with the address or secret that is shown once, tried, rotated and deleted. */

import { expect, test, violations } from "./support/test.ts";

const FILTER =
  '{event_type: "test.source", conversation: {conversation_id: "source"}, input: {text: .body.text}}';

test("source is created, tried, rotated and deleted", async ({ signedIn, gateway, watch }) => {
  watch.expected.push(/status of 40\d/);
  await signedIn.goto(`${gateway.url}/console/sources`);
  await signedIn.getByRole("link", { name: "New source" }).click();
  await signedIn.getByLabel("Name").fill("made-here");
  await signedIn.getByRole("combobox", { name: "Signature scheme" }).selectOption("none");
  await signedIn.getByLabel("jq filter to the event").fill("{event_type");
  await signedIn.getByRole("button", { name: "Create source" }).click();
  const filter = signedIn.getByLabel("jq filter to the event");
  await expect(filter).toBeFocused();
  await expect(filter).toHaveAccessibleDescription(/./);
  await filter.fill(FILTER);
  await signedIn.getByRole("button", { name: "Create source" }).click();
  await expect(signedIn.getByRole("heading", { level: 1 })).toHaveText("made-here");
  const once = signedIn.locator(".card", { hasText: "shown once" });
  const address = (await once.locator("pre").textContent()) ?? "";
  expect(address).toMatch(/\/in\/made-here\/.{16}/);
  expect(await violations(signedIn)).toEqual([]);
  const posted = await fetch(address, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ text: "from outside" }),
  });
  expect(posted.status).toBe(200);
  expect((await posted.json()).event_id).toMatch(/^[0-9a-f-]{36}$/);

  await signedIn.reload();
  await expect(signedIn.getByText(address)).toHaveCount(0);
  await signedIn.getByLabel("Body").fill('{"text": "tried only"}');
  await signedIn.getByRole("button", { name: "Show the event" }).click();
  await expect(signedIn.getByRole("status").filter({ hasText: "tried only" })).toContainText("test.source");
  await signedIn.getByLabel("Body").fill('{"text": 5}');
  await signedIn.getByRole("button", { name: "Show the event" }).click();
  await expect(signedIn.getByText("/input/text")).toBeVisible();
  await signedIn.getByLabel("Headers").fill("broken");
  await expect(signedIn.getByRole("button", { name: "Show the event" })).toBeDisabled();

  await signedIn.getByRole("button", { name: "New secret…" }).click();
  await signedIn.getByRole("dialog").getByLabel("Secret").fill("a-chosen-secret-of-the-sender");
  await signedIn.getByRole("dialog").getByRole("button", { name: "Replace the secret" }).click();
  await expect(once.locator("pre")).toContainText("a-chosen-secret-of-the-sender");
  await expect(signedIn.getByText("Previous secret is accepted until")).toBeVisible();

  await signedIn.getByRole("button", { name: "Delete…" }).click();
  await signedIn.getByRole("dialog").getByRole("button", { name: "Delete the source" }).click();
  await expect(signedIn).toHaveURL(`${gateway.url}/console/sources`);
  expect((await fetch(address, { method: "POST", body: "{}" })).status).toBe(401);
});

test("viewer reads and tries a source only", async ({ page, gateway }) => {
  const { key } = await gateway.call("/v1/api-keys", { name: "reader", role: "viewer" });
  const source = await gateway.call("/v1/sources", { name: "read", scheme: "github", filter: FILTER });
  await page.goto(`${gateway.url}/console/sources/${source.id}#key=${key}`);
  await page.getByLabel("Body").fill('{"text": "by a viewer"}');
  await page.getByRole("button", { name: "Show the event" }).click();
  await expect(page.getByRole("status").filter({ hasText: "by a viewer" })).toBeVisible();
  await expect(page.getByRole("main").getByRole("button", { name: /secret|Delete/ })).toHaveCount(0);
});
