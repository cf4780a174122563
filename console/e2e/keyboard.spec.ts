/** Everything works without a mouse. */

import { completed, message, question } from "./support/runner.ts";
import { expect, test, violations } from "./support/test.ts";

const CONVERSATION = { conversation: { conversation_id: "keyboard" } };

test("keys move between runs and open them", async ({ signedIn, gateway }) => {
  for (const text of ["first", "second", "third"]) await gateway.finish(`${text} run`, CONVERSATION);
  await signedIn.goto(`${gateway.url}/console/runs?conversation_id=keyboard`);
  await expect(signedIn.getByRole("link", { name: /run$/ })).toHaveCount(3);
  await signedIn.keyboard.press("j");
  await expect(signedIn.getByRole("link", { name: "third run" })).toBeFocused();
  await signedIn.keyboard.press("j");
  await expect(signedIn.getByRole("link", { name: "second run" })).toBeFocused();
  await signedIn.keyboard.press("k");
  await expect(signedIn.getByRole("link", { name: "third run" })).toBeFocused();
  await signedIn.keyboard.press("Enter");
  const heading = signedIn.getByRole("heading", { level: 1 });
  await expect(heading).toContainText("third run");
  // The next and previous runs are those of the filter.
  await signedIn.keyboard.press("j");
  await expect(heading).toContainText("second run");
  await signedIn.keyboard.press("k");
  await expect(heading).toContainText("third run");
  await signedIn.keyboard.press("u");
  await expect(heading).toHaveText("Runs");
  await expect(signedIn).toHaveURL(/conversation_id=keyboard/);
});

test("question mark lists the keys, and escape closes the list", async ({ signedIn, gateway }) => {
  await gateway.finish("listed");
  await expect(signedIn.getByRole("link", { name: "listed" }).first()).toBeVisible();
  await signedIn.keyboard.press("?");
  const dialog = signedIn.getByRole("dialog");
  await expect(dialog.locator("kbd").getByText("j", { exact: true })).toBeVisible();
  expect(await violations(signedIn)).toEqual([]);
  await signedIn.keyboard.press("Escape");
  await expect(dialog).toHaveCount(0);
});

test("slash goes to the filters, where keys are text", async ({ signedIn, watch }) => {
  // It is no runner id.
  watch.expected.push(/status of 400/);
  await expect(signedIn.getByRole("heading", { level: 1 })).toHaveText("Runs");
  await signedIn.keyboard.press("/");
  await signedIn.keyboard.type("jk?ri/");
  const focused = signedIn.locator(":focus");
  await expect(focused).toHaveValue("jk?ri/");
  await expect(signedIn.getByRole("dialog")).toHaveCount(0);
  await signedIn.keyboard.press("Enter");
  await expect(signedIn).toHaveURL(/=jk/);
});

test("focus is visible on every control", async ({ signedIn, gateway }) => {
  await gateway.finish("focus", { conversation: { conversation_id: "focus" } });
  await signedIn.goto(`${gateway.url}/console/runs?conversation_id=focus`);
  await expect(signedIn.getByRole("link", { name: "focus", exact: true })).toBeVisible();
  const seen = new Set<string>();
  for (let presses = 0; presses < 20; presses += 1) {
    await signedIn.keyboard.press("Tab");
    const focused = await signedIn.evaluate(() => {
      const element = document.activeElement as HTMLElement;
      const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(element);
      const isMarked = (outlineStyle !== "none" && outlineWidth !== "0px") || boxShadow !== "none";
      return {
        name: element.textContent?.slice(0, 40) || element.tagName,
        isBody: element === document.body,
        isMarked,
      };
    });
    if (focused.isBody) break;
    seen.add(focused.name);
    expect(focused.isMarked, `no visible focus on ${focused.name}`).toBe(true);
  }
  expect(seen.size).toBeGreaterThan(6);
});

test("question is answered in the inbox by keyboard", async ({ signedIn, gateway }) => {
  gateway.runner.on("asks by key", (stream) =>
    stream.end(question("Which desk?"), message("a question"), completed),
  );
  await gateway.finish("asks by key", { conversation: { conversation_id: "desk" } });
  await signedIn.getByRole("link", { name: /Inbox/ }).press("Enter");
  const form = signedIn
    .getByRole("form")
    .or(signedIn.locator("form"))
    .filter({ hasText: "Which desk?" })
    .first();
  await form.getByLabel(/Note/).focus();
  await signedIn.keyboard.type("near the window");
  await signedIn.keyboard.press("Tab");
  await signedIn.keyboard.press("Enter");
  await expect(form).toHaveCount(0);
  const answered = await gateway.call("/v1/interactions?conversation_id=desk");
  expect(answered.items[0].status).toBe("submitted");
});
