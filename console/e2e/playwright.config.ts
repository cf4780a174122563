import { existsSync } from "node:fs";
import { defineConfig } from "@playwright/test";

// The browser of the distribution: nothing is downloaded.
const installed = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
const browser = process.env.CHROMIUM ?? installed.find((path) => existsSync(path));
if (browser === undefined)
  throw new Error("no Chromium: install the package chromium, or name it in CHROMIUM");

export default defineConfig({
  testDir: ".",
  outputDir: "../../target/console-e2e",
  fullyParallel: true,
  workers: 2,
  timeout: 30_000,
  // All payloads take longer.
  globalTimeout: process.env.RUNNEL_TEST_PAYLOADS === undefined ? 600_000 : 3_600_000,
  forbidOnly: true,
  reporter: "list",
  expect: { timeout: 10_000 },
  use: {
    screenshot: "only-on-failure",
    locale: "en-US",
    timezoneId: "Europe/Berlin",
    // Containers of CI run as root, where Chromium has no sandbox.
    launchOptions: { executablePath: browser, args: ["--no-sandbox"] },
  },
});
