import { useQuery } from "@tanstack/react-query";
import type { Schema } from "../api/client";
import { pausesQuery } from "../api/queries";
import { useRights } from "../api/rights";
import { type Translate, useText } from "../i18n";
import { short } from "../lib/format";

/** Pauses by operators, above all views. */
export function PauseBanner() {
  const t = useText();
  const rights = useRights();
  const reads = rights?.readsAdmin === true || rights?.owns === true;
  const pauses = useQuery({ ...pausesQuery(), enabled: reads }).data?.items ?? [];
  if (pauses.length === 0) return null;
  return (
    <div className="warning" role="status">
      {pauses.map((pause) => (
        <p key={`${pause.target} ${pause.workspace_id} ${pause.agent_id}`}>
          {t(`pause.${pause.mode}`, { scope: scopeOf(t, pause) })}
          {pause.held_runs != null && pause.held_runs > 0 && ` ${t("pause.waiting", { n: pause.held_runs })}`}
          {pause.reason != null && ` ${pause.reason}`}
        </p>
      ))}
    </div>
  );
}

function scopeOf(t: Translate, pause: Schema<"Pause">): string {
  if (pause.target === "agent") return t("pause.agent", { id: short(pause.agent_id ?? "") });
  return pause.target === "all" ? t("pause.all") : t("pause.workspace", { id: pause.workspace_id ?? "" });
}
