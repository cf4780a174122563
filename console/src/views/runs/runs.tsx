import { Link, useSearch } from "@tanstack/react-router";
import type { Run } from "../../api/client";
import { record } from "../../api/errors";
import { type Translate, useText } from "../../i18n";
import { runsCall } from "../../lib/acts";
import { isFiltered, type RunFilters } from "../../lib/filters";
import { duration, short } from "../../lib/format";
import { answeredQuestion } from "../../lib/waiting";
import { plainWord } from "../../lib/words";
import { ListAge } from "../../ui/age";
import { CopyMenu } from "../../ui/copy-menu";
import { Empty, Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { useRowKeys } from "../../ui/row-keys";
import { RunState } from "../../ui/run-state";
import { isPlainEnd } from "../../ui/status";
import { When } from "../../ui/when";
import { FilterBar } from "./filter-bar";
import { useRunList } from "./list";

export function Runs() {
  const t = useText();
  const filters = useSearch({ from: "/runs" });
  const list = useRunList(filters);
  return (
    <main>
      <h1>{t("nav.runs")}</h1>
      <FilterBar filters={filters} />
      {list.error !== null && <Problem error={list.error} />}
      <ListAge of={list} />
      {list.isLoading && <Loading what="nav.runs" />}
      {!list.isLoading && list.runs.length === 0 && list.error === null && !list.hasMore && (
        <NoRuns filters={filters} />
      )}
      {list.runs.length > 0 && <RunTable runs={list.runs} filters={filters} />}
      <footer className="more">
        <span className="faint">{t("runs.loaded", { n: list.runs.length })}</span>
        {list.hasMore && (
          <button type="button" onClick={list.loadMore} disabled={list.isLoadingMore}>
            {t("list.more")}
          </button>
        )}
        <CopyMenu acts={[{ label: t("nav.runs"), call: runsCall(filters) }]} />
      </footer>
    </main>
  );
}

function NoRuns({ filters }: { filters: RunFilters }) {
  return isFiltered(filters) ? (
    <Empty text="runs.noMatch" />
  ) : (
    <Empty text="runs.none" command='runnel send "Hello"' />
  );
}

function RunTable({ runs, filters }: { runs: Run[]; filters: RunFilters }) {
  const t = useText();
  const rows = useRowKeys();
  return (
    <table className="list runs">
      <thead>
        <tr>
          <th>{t("run.status")}</th>
          <th>{t("run.input")}</th>
          <th>{t("run.agent")}</th>
          <th>{t("run.created")}</th>
          <th className="number">{t("run.duration")}</th>
        </tr>
      </thead>
      <tbody ref={rows}>
        {runs.map((run) => (
          <RunRow key={run.run_id} run={run} filters={filters} />
        ))}
      </tbody>
    </table>
  );
}

function reasonOf(t: Translate, run: Run): string {
  const { message } = record(run.error);
  if (typeof message === "string") return message;
  return isPlainEnd(run) ? "" : plainWord(t, run.status_reason ?? "");
}

function RunRow({ run, filters }: { run: Run; filters: RunFilters }) {
  const t = useText();
  const reason = reasonOf(t, run);
  const isAnswer = answeredQuestion(run) !== null;
  return (
    <tr>
      <td>
        <RunState run={run} />
      </td>
      <td className="wide">
        <Link className="row" to="/runs/$runId" params={{ runId: run.run_id }} search={filters}>
          {run.input_preview ??
            (isAnswer ? t("run.answerToQuestion", { id: short(run.run_id) }) : short(run.run_id))}
        </Link>
        {reason && <p className="reason">{reason}</p>}
      </td>
      <td>{run.agent_name ?? short(run.agent_id)}</td>
      <td>
        <When at={run.created_at} />
      </td>
      <td className="number">{run.duration_ms == null ? "" : duration(run.duration_ms)}</td>
    </tr>
  );
}
