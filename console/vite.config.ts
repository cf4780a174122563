import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

// `npm run dev` and `vite preview` forward API calls to this gateway.
const gateway = "http://127.0.0.1:8700";
const proxy = { "/v1": gateway, "/healthz": gateway, "/readyz": gateway };

export default defineConfig({
  base: "/console/",
  plugins: [react()],
  server: { proxy },
  preview: { proxy },
  // Playwright runs those of e2e/.
  test: { include: ["src/**/*.test.ts"] },
  build: {
    target: "es2022",
    // A data URL would need a wider Content-Security-Policy.
    assetsInlineLimit: 0,
    license: { fileName: "licenses.txt" },
  },
});
