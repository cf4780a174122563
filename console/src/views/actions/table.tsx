import { Link } from "@tanstack/react-router";
import type { Schema } from "../../api/client";
import { useText } from "../../i18n";
import { short } from "../../lib/format";
import { ACTION_TONES, isPending, mayHaveHappened } from "../../lib/platform-actions";
import { AgentName } from "../../ui/agent-name";
import { Badge, Json, Scroll } from "../../ui/parts";
import { When } from "../../ui/when";

type Action = Schema<"PlatformAction">;

interface TableProps {
  actions: Action[];
  /** True outside of the page of their run. */
  hasRun?: boolean;
}

export function ActionTable({ actions, hasRun }: TableProps) {
  const t = useText();
  if (actions.length === 0) return null;
  return (
    <Scroll>
      <table className="list">
        <thead>
          <tr>
            <th>{t("run.status")}</th>
            <th>{t("actions.action")}</th>
            {hasRun && <th>{t("run.agent")}</th>}
            {hasRun && <th>{t("run.title")}</th>}
            <th>{t("actions.requested")}</th>
            <th>{t("actions.until")}</th>
          </tr>
        </thead>
        <tbody>
          {actions.map((action) => (
            <tr key={action.id}>
              <td>
                <Badge tone={ACTION_TONES[action.status] ?? "wait"}>{t(`actions.${action.status}`)}</Badge>
              </td>
              <td className="wide">
                <ActionDetails action={action} />
              </td>
              {hasRun && (
                <td>
                  <AgentName agentId={action.agent_id} />
                </td>
              )}
              {hasRun && (
                <td>
                  <Link to="/runs/$runId" params={{ runId: action.run_id }}>
                    {short(action.run_id)}
                  </Link>
                </td>
              )}
              <td>
                <When at={action.created_at} />
              </td>
              <td>
                {isPending(action) && t("inbox.expires")}{" "}
                <When
                  at={isPending(action) ? action.expires_at : (action.finished_at ?? action.expires_at)}
                />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

/** The act and its outcome. Target, payload and output are shown as they are sent. */
function ActionDetails({ action }: { action: Action }) {
  const t = useText();
  const { id, target, payload, output, error, interaction_id, claimed_at } = action;
  return (
    <>
      <strong>{action.action}</strong>
      {error != null && (
        <p className="reason">
          <code>{error.code}</code> {error.message}
        </p>
      )}
      {mayHaveHappened(action) && <p className="reason">{t("actions.mayHaveHappened")}</p>}
      {action.status === "awaiting_approval" && (
        <p className="reason">
          <Link className="target" to="/inbox">
            {t("nav.inbox")}
          </Link>
        </p>
      )}
      <details>
        <summary>{t("actions.details")}</summary>
        {claimed_at != null && (
          <p className="reason">
            {t("actions.claimed")} <When at={claimed_at} />
          </p>
        )}
        <Json value={{ id, target, payload, output, interaction_id }} />
      </details>
    </>
  );
}
