import type { Schema } from "../../api/client";
import type { FieldFault } from "../../api/errors";
import { useText } from "../../i18n";
import { faultsAt } from "../../lib/field-faults";
import { Field } from "../../ui/field-faults";
import type { AgentSpec } from "./queries";

interface GeneralProps {
  spec: AgentSpec;
  /** Faults that the gateway found, with pointers into the agent. */
  faults: FieldFault[];
  change: (fields: Partial<AgentSpec>) => void;
  runners: Schema<"RunnerView">[];
}

export function GeneralFields({ spec, faults, change, runners }: GeneralProps) {
  const t = useText();
  const field = (pointer: string) => ({ faults: faultsAt(faults, pointer) });
  const isListed = spec.runner_id === "" || runners.some((runner) => runner.id === spec.runner_id);
  return (
    <div className="columns">
      <Field label={t("agents.name")} {...field("/name")}>
        {(marks) => (
          <input
            {...marks}
            required
            value={spec.name}
            onChange={(event) => change({ name: event.target.value })}
          />
        )}
      </Field>
      <Field label={t("agents.description")} {...field("/description")}>
        {(marks) => (
          <input
            {...marks}
            value={spec.description ?? ""}
            onChange={(event) => change({ description: event.target.value || null })}
          />
        )}
      </Field>
      <Field label={t("agents.eventTypes")} {...field("/event_types")}>
        {(marks) => (
          <input
            {...marks}
            required
            value={spec.event_types.join(", ")}
            onChange={(event) =>
              change({ event_types: event.target.value.split(",").map((type) => type.trim()) })
            }
          />
        )}
      </Field>
      <Field label={t("run.runner")} {...field("/runner_id")}>
        {(marks) => (
          <select
            {...marks}
            required
            value={spec.runner_id}
            onChange={(event) => change({ runner_id: event.target.value })}
          >
            <option value="" />
            {!isListed && <option>{spec.runner_id}</option>}
            {runners.map((runner) => (
              <option key={runner.id}>{runner.id}</option>
            ))}
          </select>
        )}
      </Field>
      <Field label={t("agents.priority")} {...field("/priority")}>
        {(marks) => (
          <input
            {...marks}
            type="number"
            value={spec.priority ?? 0}
            onChange={(event) => change({ priority: Math.trunc(event.target.valueAsNumber) || 0 })}
          />
        )}
      </Field>
      <label className="check">
        <input
          type="checkbox"
          checked={spec.enabled !== false}
          onChange={(event) => change({ enabled: event.target.checked })}
        />{" "}
        {t("agents.enabled")}
      </label>
    </div>
  );
}

/** Pointers of the fields above. */
export const GENERAL = ["/name", "/description", "/event_types", "/runner_id", "/priority"];
