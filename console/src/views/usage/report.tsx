import { keepPreviousData, queryOptions, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { type FormEvent, useMemo } from "react";
import { api, dataOf, type Schema } from "../../api/client";
import { useText } from "../../i18n";
import { count, money, short } from "../../lib/format";
import {
  byDay,
  dateOf,
  GROUPINGS,
  type Grouping,
  MEASURES,
  type Measure,
  PERIODS,
  type Period,
  periodOf,
  plotted,
  readUsage,
  runsOf,
  type UsageSearch,
} from "../../lib/usage";
import { AgentChoice } from "../../ui/agent-choice";
import { Empty, Loading, Scroll } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { useNow } from "../../ui/when";
import { MAX_SERIES, Plot, Swatch } from "./plot";

type Group = Schema<"UsageGroup">;
type Used = Schema<"UsedByRuns">;

const RENEW_MS = 15_000;
const DAY = 86_400;

function reportQuery({ from, to }: Period, { by, agent_id }: UsageSearch) {
  const query = { from, to, group_by: by ?? "agent", ...(agent_id === undefined ? {} : { agent_id }) };
  return queryOptions({
    queryKey: ["usage", query],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/usage", { params: { query }, signal })),
    refetchInterval: RENEW_MS,
    placeholderData: keepPreviousData,
  });
}

/** Cost, tokens, calls and runs by day, as a plot and as tables. */
export function UsageReport() {
  const t = useText();
  const search = useSearch({ from: "/usage" });
  const period = periodOf(search, useNow());
  const report = useQuery(reportQuery(period, search));
  return (
    <>
      <Controls search={search} period={period} />
      {report.isPending && <Loading what="usage.title" />}
      {report.error !== null && <Problem error={report.error} retry={() => void report.refetch()} />}
      {report.data?.groups.length === 0 && <Empty text="usage.noCalls" />}
      {report.data !== undefined && report.data.groups.length > 0 && (
        <Shown report={report.data} measure={search.measure ?? "cost"} agentId={search.agent_id} />
      )}
      <p className="faint">{t("usage.counts")}</p>
    </>
  );
}

function Controls({ search, period }: { search: UsageSearch; period: Period }) {
  const t = useText();
  const navigate = useNavigate();
  const apply = (change: UsageSearch) =>
    void navigate({ to: "/usage", search: readUsage({ ...search, ...change }) });
  const [from, to] = [dateOf(period.from), dateOf(period.to - DAY)];
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const given = new FormData(event.currentTarget);
    apply({ days: undefined, from: `${given.get("from")}`, to: `${given.get("to")}` });
  };
  const hasDates = search.from !== undefined || search.to !== undefined;
  return (
    <section className="filters" aria-label={t("usage.controls")}>
      <div className="quick">
        {PERIODS.map((days) => (
          <button
            key={days}
            type="button"
            aria-pressed={!hasDates && (search.days ?? "30") === `${days}`}
            onClick={() => apply({ days: `${days}`, from: undefined, to: undefined })}
          >
            {t("usage.days", { n: days })}
          </button>
        ))}
        {/* The key renews the fields after the back button. */}
        <form className="quick" onSubmit={submit} key={`${from} ${to}`}>
          <input type="date" name="from" aria-label={t("usage.from")} defaultValue={from} required />
          <input type="date" name="to" aria-label={t("usage.to")} defaultValue={to} required />
          <button type="submit">{t("runs.apply")}</button>
        </form>
      </div>
      <div className="quick">
        <select
          aria-label={t("usage.measure")}
          value={search.measure ?? "cost"}
          onChange={(event) => apply({ measure: event.target.value as Measure })}
        >
          {MEASURES.map((measure) => (
            <option key={measure} value={measure}>
              {t(`usage.${measure}`)}
            </option>
          ))}
        </select>
        <select
          aria-label={t("usage.by")}
          value={search.by ?? "agent"}
          onChange={(event) => apply({ by: event.target.value as Grouping })}
        >
          {GROUPINGS.map((grouping) => (
            <option key={grouping} value={grouping}>
              {t(`usage.by.${grouping}`)}
            </option>
          ))}
        </select>
        <AgentChoice value={search.agent_id ?? ""} set={(agent_id) => apply({ agent_id })} />
      </div>
    </section>
  );
}

function Shown({
  report,
  measure,
  agentId,
}: {
  report: Schema<"UsageReport">;
  measure: Measure;
  agentId: string | undefined;
}) {
  const t = useText();
  const plot = useMemo(() => plotted(report, measure, MAX_SERIES), [report, measure]);
  const label = t("usage.plot", {
    measure: t(`usage.${measure}`),
    by: t(`usage.by.${report.group_by}`),
    from: dateOf(report.from),
    to: dateOf(report.to - DAY),
  });
  const days = byDay(report);
  return (
    <>
      <Plot plot={plot} measure={measure} label={label} />
      <h2>{t(`usage.by.${report.group_by}`)}</h2>
      <UsedTable first={t(`usage.by.${report.group_by}`)}>
        {report.groups.map((group, at) => (
          <tr key={group.id ?? ""}>
            <td className="wide">
              <Swatch id={at < MAX_SERIES ? (group.id ?? null) : null} at={at} />{" "}
              <GroupName group={group} report={report} />
            </td>
            <Amounts used={group.total} />
          </tr>
        ))}
        <tr>
          <th scope="row">{t("usage.total")}</th>
          <Amounts used={report.total} />
        </tr>
      </UsedTable>
      <h2>{t("usage.byDay")}</h2>
      <UsedTable first={t("usage.day")}>
        {days.map(({ day, used }) => (
          <tr key={day}>
            <td>
              <Link to="/runs" search={runsOf({ from: day, to: day + DAY }, agentId)}>
                {dateOf(day)}
              </Link>
            </td>
            <Amounts used={used} />
          </tr>
        ))}
      </UsedTable>
    </>
  );
}

/** The name of a group, linked to the runs of an agent. The API has no filter of runs by model or tool. */
function GroupName({ group, report }: { group: Group; report: Schema<"UsageReport"> }) {
  const t = useText();
  if (group.id == null) return <>{t("usage.others")}</>;
  if (report.group_by !== "agent") return <>{group.id}</>;
  return (
    <Link to="/runs" search={runsOf(report, group.id)} title={group.id}>
      {group.name ?? t("usage.deletedAgent", { id: short(group.id) })}
    </Link>
  );
}

function UsedTable({ first, children }: { first: string; children: React.ReactNode }) {
  const t = useText();
  const numbers = ["cost", "input", "cached", "output", "calls", "runs"] as const;
  return (
    <Scroll>
      <table className="list">
        <thead>
          <tr>
            <th scope="col">{first}</th>
            {numbers.map((number) => (
              <th key={number} scope="col" className="number">
                {t(`usage.${number}`)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </Scroll>
  );
}

function Amounts({ used }: { used: Used }) {
  const amounts = [
    money(used.cost),
    count(used.prompt_tokens),
    count(used.tokens.cache_read),
    count(used.completion_tokens),
    count(used.calls),
    count(used.runs),
  ];
  return (
    <>
      {amounts.map((amount, at) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: the columns are fixed
        <td key={at} className="number">
          {amount}
        </td>
      ))}
    </>
  );
}
