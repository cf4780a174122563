import type { RunStatus, Schema } from "../api/client";

/** Sum of some statuses, such as `12` or `10000+` if older runs may count, too. */
export function sumOf(counts: Schema<"CountsByStatus"> | undefined, statuses: readonly RunStatus[]): string {
  if (counts === undefined) return "";
  const found = counts.items.filter((item) => statuses.includes(item.status));
  const sum = found.reduce((total, item) => total + item.count, 0);
  return `${sum}${found.every((item) => item.exact) ? "" : "+"}`;
}
