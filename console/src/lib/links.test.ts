import { expect, test } from "vitest";
import { linkParts } from "./links";

test("links web addresses only", () => {
  expect(linkParts("See https://a.example/x?y=1. Or javascript:alert(1)")).toEqual([
    { text: "See ", href: null },
    { text: "https://a.example/x?y=1", href: "https://a.example/x?y=1" },
    { text: ". Or javascript:alert(1)", href: null },
  ]);
  expect(linkParts('<a href="http://b.example">b</a>').map((part) => part.href)).toEqual([
    null,
    "http://b.example/",
    null,
  ]);
  expect(linkParts("http://[")).toEqual([{ text: "http://[", href: null }]);
  expect(linkParts("")).toEqual([]);
});
