import { expect, test } from "vitest";
import type { Schema } from "../api/client";
import { filesOf } from "./files";

const message = (at: number, attachment_refs: object[]) =>
  ({ created_at: at, run_id: `r${at}`, attachment_refs }) as unknown as Schema<"TranscriptItem">;

test("each file is listed once, the newest first", () => {
  const report = { id: "a1", name: "report.csv", mime_type: "text/csv", size: 12 };
  const files = filesOf([
    message(1, [report]),
    message(2, [{ url: "https://x.example/p.png" }, {}]),
    message(3, [report]),
  ]);
  expect(files.map(({ name, runId }) => `${name} ${runId}`)).toEqual([
    "report.csv r3",
    "https://x.example/p.png r2",
  ]);
  expect(files[0]).toMatchObject({ id: "a1", size: 12, mimeType: "text/csv" });
  expect(files[1]).toMatchObject({ id: null, size: null });
});
