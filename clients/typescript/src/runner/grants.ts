/** Calls of a run that its manifest does not ask for, and that therefore find nothing. */

import type { Permissions } from "./context.js";
import { log, type Result } from "./results.js";

/** Permissions that the manifest lacks, each reported once a run: a warning, and a `log` result for the run. */
export class MissingPermissions {
  readonly #reported = new Set<string>();
  #unsent: Result[] = [];

  constructor(
    private readonly runId: string,
    private readonly permissions: Permissions,
  ) {}

  /** Reports a call that found no grant, unless the agent or the event withholds what the manifest asks for. */
  report(call: string, group: keyof Permissions, operation: string): void {
    const missing = `permissions.${group} ${operation}`;
    if (this.#reported.has(missing) || this.#asksFor(group, operation)) return;
    this.#reported.add(missing);
    const text =
      `${call} finds nothing: ${group} was not granted (the manifest lacks ${missing}); ` +
      "add it to the permissions of the runner";
    console.warn(`run ${this.runId}: ${text}`);
    this.#unsent.push(log(text, "warning"));
  }

  #asksFor(group: keyof Permissions, operation: string): boolean {
    // Any area of storage asks for all scopes of state.
    if (group === "state" && this.permissions.storage?.length) return true;
    const operations: readonly string[] = this.permissions[group] ?? [];
    return operations.includes(operation);
  }

  /** Log results that were not sent yet. */
  take(): Result[] {
    const taken = this.#unsent;
    this.#unsent = [];
    return taken;
  }
}
