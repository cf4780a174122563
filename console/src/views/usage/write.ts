import { count, money } from "../../lib/format";
import type { Measure } from "../../lib/usage";

/** An amount in the format of its measure. */
export function write(measure: Measure, value: number): string {
  return measure === "cost" ? money(value) : count(Math.round(value));
}
