import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useText } from "../../i18n";
import { short } from "../../lib/format";
import { OCCURRENCE_STATES } from "../../lib/schedules";
import { ListAge } from "../../ui/age";
import { Badge, Empty, Loading, Scroll } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { Status } from "../../ui/status";
import { When } from "../../ui/when";
import { occurrencesQuery } from "./queries";

/** The newest occurrences of a schedule, with their runs. */
export function Occurrences({ scheduleId }: { scheduleId: string }) {
  const t = useText();
  const occurrences = useQuery(occurrencesQuery(scheduleId));
  const items = occurrences.data?.items ?? [];
  return (
    <section aria-label={t("occurrences.title")}>
      <h2>{t("occurrences.title")}</h2>
      {occurrences.isPending && <Loading what="occurrences.title" />}
      {occurrences.error !== null && <Problem error={occurrences.error} />}
      <ListAge of={occurrences} />
      {occurrences.isSuccess && items.length === 0 && <Empty text="occurrences.none" />}
      <Scroll>
        <table className="list" hidden={items.length === 0}>
          <thead>
            <tr>
              <th>{t("run.status")}</th>
              <th>{t("occurrences.due")}</th>
              <th>{t("run.title")}</th>
              <th>{t("endpoints.reason")}</th>
              <th className="number">{t("deliveries.tries")}</th>
            </tr>
          </thead>
          <tbody>
            {items.map(({ event_id, status, due_at, manual, run_id, run_status, reason, tries }) => (
              <tr key={event_id}>
                <td>
                  <Badge tone={OCCURRENCE_STATES[status].tone}>{t(OCCURRENCE_STATES[status].text)}</Badge>
                </td>
                <td>
                  <When at={due_at} /> {manual && t("occurrences.manual")}
                </td>
                <td>
                  {run_id != null && (
                    <Link to="/runs/$runId" params={{ runId: run_id }}>
                      {short(run_id)}
                    </Link>
                  )}{" "}
                  {run_status != null && <Status status={run_status} />}
                </td>
                <td className="wide">{reason}</td>
                <td className="number">{tries}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </section>
  );
}
