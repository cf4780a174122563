import { expect, test } from "vitest";
import { errorOf, isUnsupported } from "./errors";

const refused = (status: number, message: string) =>
  errorOf(status, { error: { code: "not_found", message, retryable: false, details: {} } });

test("absent routes and methods are those of an older gateway, absent objects are not", () => {
  expect(isUnsupported(refused(404, "there is no such route; /openapi.json lists them"))).toBe(true);
  expect(isUnsupported(refused(405, "this route has no such method"))).toBe(true);
  expect(isUnsupported(errorOf(404, "<html>"))).toBe(true);
  expect(isUnsupported(refused(404, "there is no agent 7"))).toBe(false);
  expect(isUnsupported(errorOf(503, undefined))).toBe(false);
  expect(isUnsupported(new TypeError("offline"))).toBe(false);
});
