import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { Run } from "../../api/client";
import { newestRunsQuery } from "../../api/queries";
import { useText } from "../../i18n";
import { duration, short } from "../../lib/format";
import { isLive, Status } from "../../ui/status";

/** Runs that this run has started. */
export function Children({ run }: { run: Run }) {
  const t = useText();
  const children = useQuery({
    ...newestRunsQuery({ parent_run_id: run.run_id }),
    refetchInterval: isLive(run.status) ? 2000 : false,
  });
  const items = children.data?.items ?? [];
  if (items.length === 0) return null;
  return (
    <section aria-label={t("run.children")}>
      <h2>{t("run.children")}</h2>
      <table className="list">
        <tbody>
          {items.toReversed().map((child) => (
            <tr key={child.run_id}>
              <td>
                <Status status={child.status} />
              </td>
              <td className="wide">
                <Link className="row" to="/runs/$runId" params={{ runId: child.run_id }}>
                  {child.input_preview ?? short(child.run_id)}
                </Link>
              </td>
              <td>{child.agent_name}</td>
              <td className="number">{child.duration_ms == null ? "" : duration(child.duration_ms)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {children.data?.has_more && (
        <Link to="/runs" search={{ parent_run_id: run.run_id }}>
          {t("list.more")}
        </Link>
      )}
    </section>
  );
}
