import { expect, test } from "vitest";
import { pageOf, pagesOf, pagesOfSequences } from "./pages";

test("finds the page of a sequence", () => {
  expect(pageOf(1, 1000)).toEqual({ first: 1, last: 100 });
  expect(pageOf(100, 1000)).toEqual({ first: 1, last: 100 });
  expect(pageOf(101, 150)).toEqual({ first: 101, last: 150 });
});

test("covers visible rows with few pages", () => {
  expect(pagesOf(95, 105, 100_000)).toEqual([
    { first: 1, last: 100 },
    { first: 101, last: 200 },
  ]);
  expect(pagesOf(0, 20, 0)).toEqual([]);
  expect(pagesOf(99_990, 99_999, 100_000)).toEqual([{ first: 99_901, last: 100_000 }]);
});

test("loads each page of chosen events once", () => {
  expect(pagesOfSequences([3, 50, 250], 260)).toEqual([
    { first: 1, last: 100 },
    { first: 201, last: 260 },
  ]);
});
