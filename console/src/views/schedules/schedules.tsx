import { useInfiniteQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { ruleOf, scheduleState } from "../../lib/schedules";
import { ListAge } from "../../ui/age";
import { Badge, Empty, Loading, Scroll } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { When } from "../../ui/when";
import { schedulesQuery } from "./queries";

const EXAMPLE = `[[schedules]]
name = "nightly-digest"
agent = "hello"
cron = "0 2 * * *"
timezone = "Europe/Berlin"
event.input = { text = "Write the digest of yesterday." }`;

export function Schedules() {
  const t = useText();
  const rights = useRights();
  const schedules = useInfiniteQuery(schedulesQuery());
  const items = schedules.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <main>
      <h1>{t("nav.schedules")}</h1>
      {rights?.changes && (
        <p>
          <Link to="/schedules/$scheduleId" params={{ scheduleId: "new" }}>
            {t("schedules.new")}
          </Link>
        </p>
      )}
      {schedules.isPending && <Loading what="nav.schedules" />}
      {schedules.error !== null && <Problem error={schedules.error} retry={() => void schedules.refetch()} />}
      <ListAge of={schedules} />
      {schedules.isSuccess && items.length === 0 && <Empty text="schedules.none" command={EXAMPLE} />}
      <Scroll>
        <table className="list" hidden={items.length === 0}>
          <thead>
            <tr>
              <th>{t("run.status")}</th>
              <th>{t("agents.name")}</th>
              <th>{t("run.agent")}</th>
              <th>{t("schedules.next")}</th>
              <th>{t("endpoints.origin")}</th>
              <th>{t("agents.updated")}</th>
            </tr>
          </thead>
          <tbody>
            {items.map((schedule) => (
              <tr key={schedule.id}>
                <td>
                  <Badge tone={scheduleState(schedule).tone}>{t(scheduleState(schedule).text)}</Badge>
                </td>
                <td className="wide">
                  <Link className="row" to="/schedules/$scheduleId" params={{ scheduleId: schedule.id }}>
                    {schedule.name}
                  </Link>
                  <p className="reason">{ruleOf(schedule)}</p>
                </td>
                <td>{schedule.agent}</td>
                <td>
                  <When at={schedule.next_due[0]} />
                </td>
                <td>{schedule.origin}</td>
                <td>
                  <When at={schedule.updated_at} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      {schedules.hasNextPage && (
        <button
          type="button"
          onClick={() => void schedules.fetchNextPage()}
          disabled={schedules.isFetchingNextPage}
        >
          {t("list.more")}
        </button>
      )}
    </main>
  );
}
