import type { Schema } from "../../api/client";
import { useText } from "../../i18n";
import type { AgentSpec } from "./queries";

interface GeneralProps {
  spec: AgentSpec;
  change: (fields: Partial<AgentSpec>) => void;
  runners: Schema<"RunnerView">[];
}

export function GeneralFields({ spec, change, runners }: GeneralProps) {
  const t = useText();
  const isListed = spec.runner_id === "" || runners.some((runner) => runner.id === spec.runner_id);
  return (
    <div className="columns">
      <label>
        {t("agents.name")}
        <input required value={spec.name} onChange={(event) => change({ name: event.target.value })} />
      </label>
      <label>
        {t("agents.description")}
        <input
          value={spec.description ?? ""}
          onChange={(event) => change({ description: event.target.value || null })}
        />
      </label>
      <label>
        {t("agents.eventTypes")}
        <input
          required
          value={spec.event_types.join(", ")}
          onChange={(event) =>
            change({ event_types: event.target.value.split(",").map((type) => type.trim()) })
          }
        />
      </label>
      <label>
        {t("run.runner")}
        <select
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
      </label>
      <label>
        {t("agents.priority")}
        <input
          type="number"
          value={spec.priority ?? 0}
          onChange={(event) => change({ priority: Math.trunc(event.target.valueAsNumber) || 0 })}
        />
      </label>
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
