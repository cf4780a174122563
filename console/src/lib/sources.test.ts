import { expect, test } from "vitest";
import { generatesSecret, readHeaders, senderAddress, withScheme } from "./sources";

test("only a scheme with a chosen secret gets a generated one", () => {
  expect(generatesSecret("github")).toBe(true);
  expect(generatesSecret("slack")).toBe(false);
});

test("another scheme drops the header of hmac", () => {
  const spec = { name: "n", scheme: "hmac", filter: ".", header: "X-Sign", prefix: "v1=" } as const;
  expect(withScheme(spec, "github")).toEqual({ name: "n", scheme: "github", filter: "." });
  expect(withScheme({ ...spec, scheme: "none" }, "hmac").header).toBe("X-Sign");
});

test("the address ends with the secret for senders that cannot sign", () => {
  expect(senderAddress("https://r.example", "/in/shop")).toBe("https://r.example/in/shop");
  expect(senderAddress("https://r.example", "/in/shop", "s")).toBe("https://r.example/in/shop/s");
});

test("headers are lines with a name and a value", () => {
  expect(readHeaders("X-GitHub-Event: issues\n\n a:b:c ")).toEqual({
    headers: { "X-GitHub-Event": "issues", a: "b:c" },
  });
  expect(readHeaders("ok: 1\nbroken")).toEqual({ line: "broken" });
  expect(readHeaders(": no name")).toEqual({ line: ": no name" });
});
