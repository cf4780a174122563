import { expect, test } from "vitest";
import { bytes, canonical, count, distance, duration, money, relative, safeLink, short } from "./format";
import { quote } from "./snippets";

test("writes durations in two units", () => {
  const cases: [number, string][] = [
    [0, "0 ms"],
    [999, "999 ms"],
    [1234, "1.2 s"],
    [59_400, "59 s"],
    [184_000, "3 min 4 s"],
    [7_500_000, "2 h 5 min"],
    [200_000_000, "2 d 7 h"],
  ];
  for (const [ms, text] of cases) expect(duration(ms)).toBe(text);
});

test("picks the largest unit of a distance", () => {
  expect(distance(100, 100)).toEqual({ value: 0, unit: "second" });
  expect(distance(0, 125)).toEqual({ value: -2, unit: "minute" });
  expect(distance(90_000, 0)).toEqual({ value: 1, unit: "day" });
});

test("writes relative times in both languages", () => {
  expect(relative(0, 7200, "en")).toBe("2 hr. ago");
  expect(relative(0, 7200, "zh")).toBe("2小时前");
});

test("writes counts, bytes and money", () => {
  expect(count(1_234_567)).toBe("1\u202f234\u202f567");
  expect(bytes(1536)).toBe("1.5 KiB");
  expect(bytes(12)).toBe("12 B");
  expect(money(0.000123)).toBe("0.00012");
  expect(money(12.3)).toBe("12.30");
});

test("shortens long ids only", () => {
  expect(short("abc")).toBe("abc");
  expect(short("0123456789abcdef")).toBe("012345…bcdef");
});

test("links only to web addresses", () => {
  expect(safeLink("https://a.example/x")).toBe("https://a.example/x");
  for (const bad of ["javascript:alert(1)", "data:text/html,x", "/relative", ""])
    expect(safeLink(bad)).toBeNull();
});

test("quotes for a shell", () => {
  expect(quote("it's $HOME")).toBe(`'it'\\''s $HOME'`);
});

test("sorts the keys of objects", () => {
  expect(canonical({ b: [{ d: 1, c: 2 }], a: null })).toBe(
    JSON.stringify({ a: null, b: [{ c: 2, d: 1 }] }, null, 2),
  );
});
