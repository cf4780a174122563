/** Everything works without a mouse. */

import { completed, message, question } from "./support/runner.ts";
import { expect, type Page, test, violations } from "./support/test.ts";
import { open, views } from "./support/views.ts";

declare global {
  interface Window {
    focusNotes: { left: Set<Element>; unmarked: string[] };
  }
}

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

/** Has the page note the controls of its view, those that get the focus, and those that do not show it. */
async function noteFocus(page: Page): Promise<number> {
  return page.evaluate(() => {
    const controls = "a[href], button:enabled, input, select, textarea, summary, [tabindex='0']";
    // Arrow keys move within a group whose items have -1.
    const isReached = (element: Element) =>
      element.checkVisibility() && element.getAttribute("tabindex") !== "-1";
    const own = [...document.querySelectorAll(controls)].filter(isReached);
    const notes = { left: new Set(own), unmarked: [] as string[] };
    window.focusNotes = notes;
    document.addEventListener("focusin", ({ target }) => {
      const element = target as Element;
      notes.left.delete(element);
      // A list of tabs gives the focus to its chosen tab.
      if (element.getAttribute("role") === "tablist") return;
      const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(element);
      const isMarked = (outlineStyle !== "none" && outlineWidth !== "0px") || boxShadow !== "none";
      if (!isMarked) notes.unmarked.push(element.outerHTML.slice(0, 160));
    });
    return own.length;
  });
}

/** Presses the Tab key until each noted control had the focus, at most 600 times. */
async function pressTabThroughControls(page: Page): Promise<void> {
  const BATCH = 20;
  // Fields of a date, and controls that load after the notes, take further presses.
  for (let presses = 0; presses < 600; presses += BATCH) {
    for (let press = 0; press < BATCH; press += 1) await page.keyboard.press("Tab");
    const areReached = await page.evaluate(() =>
      [...window.focusNotes.left].every((element) => !element.isConnected),
    );
    if (areReached) return;
  }
}

test("tab reaches every control of every view, with a visible focus", async ({
  signedIn,
  gateway,
  watch,
}) => {
  test.setTimeout(180_000);
  watch.expected.push(/status of 404/);
  for (const view of await views(signedIn, gateway)) {
    await open(signedIn, gateway, view);
    const controls = await noteFocus(signedIn);
    expect(controls, view.name).toBeGreaterThan(6);
    await pressTabThroughControls(signedIn);
    const faults = await signedIn.evaluate(() => {
      const { left, unmarked } = window.focusNotes;
      // A renewed list has replaced some.
      const missed = [...left].filter((element) => element.isConnected);
      const inert = [...document.querySelectorAll("main *")].filter(
        (element) =>
          getComputedStyle(element).cursor === "pointer" &&
          element.closest("a, button, input, select, label, summary, [role=tab]") === null,
      );
      const shown = (elements: Element[]) => elements.map((element) => element.outerHTML.slice(0, 160));
      return { missed: shown(missed), unmarked, inert: shown(inert) };
    });
    expect.soft(faults, view.name).toEqual({ missed: [], unmarked: [], inert: [] });
  }
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
