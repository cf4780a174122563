/** Measurements of the page. They print figures and assert no time. */

import { defineConfig } from "@playwright/test";
import tests from "./playwright.config.ts";

export default defineConfig(tests, {
  testDir: "figures",
  testMatch: "*.figures.ts",
  outputDir: "../../target/console-figures",
  workers: 1,
  timeout: 1_800_000,
  globalTimeout: 3_600_000,
});
