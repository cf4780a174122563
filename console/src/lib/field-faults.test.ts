import { expect, test } from "vitest";
import { faultsAt, faultsElsewhere, pointerTo, segmentsOf, standingFaults } from "./field-faults";

const fault = (pointer: string) => ({ pointer, message: `fault of ${pointer}` });

test("a fault is shown at the field that holds its pointer", () => {
  const faults = [fault("/config/model/primary"), fault("/config/model-2"), fault("/name")];
  expect(faultsAt(faults, "/config/model")).toEqual([faults[0]]);
  expect(faultsElsewhere(faults, ["/config/model", "/name"])).toEqual([faults[1]]);
});

test("a pointer of the whole form belongs to no field", () => {
  expect(faultsElsewhere([fault("")], ["/name"])).toEqual([fault("")]);
});

test("pointers escape slashes and tildes", () => {
  const pointer = pointerTo("config", "a/b~c");
  expect(pointer).toBe("/config/a~1b~0c");
  expect(segmentsOf(pointer)).toEqual(["config", "a/b~c"]);
});

test("a fault ends when its value changes", () => {
  const sent = { name: "", config: { timeout: "x", model: { b: 1, a: 2 } } };
  const refusal = { sent, faults: [fault("/name"), fault("/config/timeout"), fault("/config/model")] };
  const now = { name: "n", config: { timeout: "x", model: { a: 2, b: 1 } } };
  expect(standingFaults(refusal, now).map(({ pointer }) => pointer)).toEqual([
    "/config/timeout",
    "/config/model",
  ]);
  expect(standingFaults(null, now)).toEqual([]);
  // A value within a text.
  const text = { sent: { arguments: "{" }, faults: [fault("/arguments/~1path/prefix")] };
  expect(standingFaults(text, { arguments: "{" })).toHaveLength(1);
  expect(standingFaults(text, { arguments: "{}" })).toEqual([]);
});
