/** Markup in text of users, runners and errors is text: nothing of it runs, loads or leaves. */

import { completed, delta, failed, message, question } from "./support/runner.ts";
import { expect, type Page, test } from "./support/test.ts";

const PAYLOADS = [
  `<img src=x onerror="window.attacked=1">`,
  `<script>window.attacked=1</script>`,
  `"><svg onload=window.attacked=1>`,
  `<iframe srcdoc="<script>parent.attacked=1</script>"></iframe>`,
  `[link](javascript:window.attacked=1) javascript:window.attacked=1`,
  `<a href="javascript:window.attacked=1">open</a>`,
  `<style>*{display:none}</style><base href="https://evil.example/"><meta http-equiv="refresh" content="0;url=https://evil.example">`,
  `{{constructor.constructor("window.attacked=1")()}} \${window.attacked=1}`,
];
const TEXT = PAYLOADS.join("\n");

/** Asserts that the page shows the payloads as text, and that none of them became an element. */
async function assertInert(page: Page): Promise<void> {
  const found = await page.evaluate(() => {
    const count = (selector: string) => document.querySelectorAll(selector).length;
    return {
      attacked: (window as { attacked?: number }).attacked,
      elements: count(
        "img[src=x], svg[onload], iframe, base, main script, main style, meta[http-equiv=refresh]",
      ),
      links: [...document.querySelectorAll("a[href]")].filter((link) =>
        /^\s*javascript:/i.test(link.getAttribute("href") ?? ""),
      ).length,
    };
  });
  expect(found).toEqual({ attacked: undefined, elements: 0, links: 0 });
}

test("markup in events, ids, results and errors is shown as text", async ({ signedIn, gateway }) => {
  const id = `<img src=x onerror=attacked=1>`;
  const event = {
    conversation: { conversation_id: id },
    actor: { actor_type: "user", actor_id: id, actor_name: PAYLOADS[2] },
    event_id: `"><script>attacked=1</script>`,
  };
  gateway.runner.on(TEXT, (stream) =>
    stream.end(
      delta(TEXT),
      {
        type: "tool.call.started",
        data: { tool_call_id: id, tool_name: PAYLOADS[0], arguments: { text: TEXT } },
      },
      message(TEXT),
      failed(TEXT),
    ),
  );
  const run = await gateway.finish(TEXT, event);
  expect(run.error.message).toContain("<script>");

  await signedIn.goto(`${gateway.url}/console/runs`);
  await expect(signedIn.getByRole("main")).toContainText("<img src=x onerror=");
  await assertInert(signedIn);
  await signedIn.goto(`${gateway.url}/console/runs?conversation_id=${encodeURIComponent(id)}`);
  await expect(signedIn.locator("a.row")).toHaveCount(1);
  await assertInert(signedIn);

  for (const tab of ["events", "calls", "grants", "usage", "rejections", "raw"]) {
    await signedIn.goto(`${gateway.url}/console/runs/${run.run_id}?tab=${tab}`);
    await expect(signedIn.getByRole("heading", { level: 1 })).toContainText("<img src=x");
    await expect(signedIn.getByRole("main")).toContainText("<script>window.attacked=1</script>");
    // A row that is opened leaves the list of closed ones.
    const closed = signedIn.getByRole("tabpanel").locator("[aria-expanded=false]");
    while ((await closed.count()) > 0) await closed.first().click();
    await assertInert(signedIn);
  }
});

test("markup in addresses is shown as text", async ({ signedIn, gateway, watch }) => {
  watch.expected.push(/status of 4\d\d/);
  for (const payload of PAYLOADS.slice(0, 3)) {
    const part = encodeURIComponent(payload);
    for (const path of [
      `runs/${part}`,
      `runs?statuses=${part}`,
      `runs?agent_id=${part}`,
      `no/${part}`,
      `inbox?tab=${part}#${part}`,
    ]) {
      await signedIn.goto(`${gateway.url}/console/${path}`);
      await expect(signedIn.getByRole("main")).toBeVisible();
      await assertInert(signedIn);
    }
  }
});

test("markup and hidden characters in questions are written out", async ({ signedIn, gateway }) => {
  const title = `Pay ${PAYLOADS[0]} \u202e000,1$`;
  gateway.runner.on("asks with markup", (stream) =>
    stream.end(question(title), message("a question"), completed),
  );
  await gateway.finish("asks with markup", { conversation: { conversation_id: "markup" } });
  await signedIn.goto(`${gateway.url}/console/inbox`);
  await expect(signedIn.getByText("U+202E").first()).toBeVisible();
  await expect(signedIn.getByRole("main")).toContainText("<img src=x onerror=");
  await assertInert(signedIn);
});

test("page cannot be framed and calls no other host", async ({ page, gateway, watch }) => {
  await page.goto(`${gateway.url}/console/#key=${gateway.key}`);
  await expect(page.getByRole("navigation").first()).toBeVisible();
  watch.expected.push(/Content Security Policy/i, /Refused to/i, /frame-ancestors/i, /violates/i);
  const escaped = await page.evaluate(async () => {
    const sent = await fetch("https://evil.example/").then(
      () => true,
      () => false,
    );
    const script = document.createElement("script");
    script.textContent = "window.attacked = 1";
    document.body.append(script);
    return { sent, attacked: (window as { attacked?: number }).attacked };
  });
  expect(escaped).toEqual({ sent: false, attacked: undefined });
});
