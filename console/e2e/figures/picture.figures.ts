/** The picture of the README: `target/console-figures/**\/console.png`. */

import { expect, test } from "../support/test.ts";

test.use({ viewport: { width: 1280, height: 1152 }, colorScheme: "light" });

test("picture", async ({ signedIn, gateway }, info) => {
  const { run_id: id } = await gateway.plan();
  await signedIn.goto(`${gateway.url}/console/runs/${id}`);
  await expect(signedIn.getByRole("region", { name: "Action graph" })).toBeVisible();
  await expect(signedIn.locator(".loading")).toHaveCount(0);
  await signedIn.screenshot({ path: info.outputPath("console.png") });
});
