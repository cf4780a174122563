import { expect, test } from "vitest";
import type { Run } from "../api/client";
import { MAX_CHAIN, readChain } from "./chain";

/** Runs 0 to `last`, of which each repeats the one before. */
function reader(last: number) {
  const link = (number: number) => (number < 0 || number > last ? null : `${number}`);
  const run = (number: number) =>
    ({ run_id: `${number}`, retry_of: link(number - 1), retried_as: link(number + 1) }) as Run;
  return { run, read: async (id: string) => run(Number(id)) };
}

const ids = (runs: Run[]) => runs.map(({ run_id }) => run_id);

test("lists earlier and later runs around a run", async () => {
  const { run, read } = reader(3);
  expect(ids(await readChain(run(1), read))).toEqual(["0", "1", "2", "3"]);
});

test("ends at a run that cannot be read", async () => {
  const { run, read } = reader(3);
  const refuse = (id: string) => (id === "0" || id === "3" ? Promise.reject(new Error("404")) : read(id));
  expect(ids(await readChain(run(1), refuse))).toEqual(["1", "2"]);
});

test("reads a bounded number of runs", async () => {
  const { run, read } = reader(100);
  expect(await readChain(run(50), read)).toHaveLength(2 * MAX_CHAIN + 1);
});
