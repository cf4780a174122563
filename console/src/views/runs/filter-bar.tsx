import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import type { RunStatus } from "../../api/client";
import { openQuestionsQuery } from "../../api/queries";
import { type TextKey, useText } from "../../i18n";
import { sumOf } from "../../lib/counts";
import {
  FILTER_NAMES,
  FILTERS,
  type FilterName,
  failedSince,
  isFiltered,
  type RunFilters,
  readFilters,
  startOfDay,
  withFilter,
  withStatuses,
} from "../../lib/filters";
import { AgentChoice } from "../../ui/agent-choice";
import { FilterForm } from "../../ui/filter-form";
import { FAILED, LIVE, WAITING } from "../../ui/status";
import { useNow } from "../../ui/when";
import { BulkActions } from "./bulk";
import { countsQuery } from "./counts";

/** Filters with a control of their own. */
const OWN: FilterName[] = ["statuses", "agent_id"];
const OTHERS = FILTER_NAMES.filter((name) => !OWN.includes(name));

export function FilterBar({ filters }: { filters: RunFilters }) {
  const t = useText();
  const navigate = useNavigate();
  const apply = (next: RunFilters) => void navigate({ to: "/runs", search: next });
  return (
    <section className="filters" aria-label={t("runs.filters")}>
      <div className="quick">
        <QuickFilters filters={filters} apply={apply} />
        <AgentChoice
          value={filters.agent_id ?? ""}
          set={(value) => apply(withFilter(filters, "agent_id", value))}
        />
        <BulkActions filters={filters} />
        {isFiltered(filters) && (
          <button type="button" className="quiet" onClick={() => apply({})}>
            {t("runs.clear")}
          </button>
        )}
      </div>
      <FilterForm
        fields={OTHERS.map((name) => ({ name, label: t(`filter.${name}`), kind: FILTERS[name] }))}
        values={filters}
        apply={(values) => apply(readFilters({ ...filters, ...values }))}
      />
    </section>
  );
}

interface FilterProps {
  filters: RunFilters;
  apply: (filters: RunFilters) => void;
}

/** One click for what an operator looks for, with its number of runs. */
function QuickFilters({ filters, apply }: FilterProps) {
  const t = useText();
  const today = `${startOfDay(useNow())}`;
  const all = useQuery(countsQuery(withStatuses(filters, "", today)));
  const failedToday = failedSince(filters, FAILED.join(","), today);
  const failed = useQuery(countsQuery(failedToday));
  // The API has no filter for runs that ended with a question.
  const asking = useQuery(openQuestionsQuery()).data?.items.length ?? 0;
  const byStatus = (label: TextKey, statuses: readonly RunStatus[]) => {
    const wanted = statuses.join(",");
    return {
      label,
      count: statuses.length === 0 ? "" : sumOf(all.data, statuses),
      isChosen: (filters.statuses ?? "") === wanted && filters.created_after !== today,
      next: withStatuses(filters, wanted, today),
    };
  };
  const buttons = [
    byStatus("runs.all", []),
    byStatus("runs.live", LIVE),
    byStatus("runs.waiting", WAITING),
    byStatus("runs.failed", FAILED),
    {
      label: "runs.failedToday" as const,
      count: sumOf(failed.data, FAILED),
      isChosen: filters.statuses === failedToday.statuses && filters.created_after === today,
      next: failedToday,
    },
  ];
  return (
    <>
      {buttons.map(({ label, count, isChosen, next }) => (
        <button
          key={label}
          type="button"
          aria-pressed={isChosen}
          title={label === "runs.waiting" ? t("runs.waitingHelp") : undefined}
          onClick={() => apply(next)}
        >
          {t(label)} {count}
        </button>
      ))}
      {asking > 0 && (
        <Link className="button quiet" to="/inbox">
          {t("runs.asking")} {asking}
        </Link>
      )}
    </>
  );
}
