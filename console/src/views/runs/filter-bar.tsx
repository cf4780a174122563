import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { type FormEvent, useRef } from "react";
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
  localTime,
  type RunFilters,
  readFilters,
  secondsOf,
  startOfDay,
  withFilter,
  withStatuses,
} from "../../lib/filters";
import { AgentChoice } from "../../ui/agent-choice";
import { useKeys } from "../../ui/keys";
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
      <OtherFilters filters={filters} apply={apply} />
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

function OtherFilters({ filters, apply }: FilterProps) {
  const t = useText();
  const element = useRef<HTMLDetailsElement>(null);
  useKeys([
    {
      key: "/",
      what: "keys.filter",
      run: () => {
        if (element.current !== null) element.current.open = true;
        element.current?.querySelector("input")?.focus();
      },
    },
  ]);
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const given = new FormData(event.currentTarget);
    const values = OTHERS.map((name) => [name, written(name, `${given.get(name) ?? ""}`)]);
    apply(readFilters({ ...filters, ...Object.fromEntries(values) }));
  };
  return (
    <details ref={element} open={OTHERS.some((name) => filters[name] !== undefined)}>
      <summary>{t("runs.moreFilters")}</summary>
      {/* The key renews the fields after the back button. */}
      <form onSubmit={submit} key={JSON.stringify(filters)}>
        {OTHERS.map((name) => (
          <label key={name} htmlFor={`filter-${name}`}>
            {t(`filter.${name}`)}
            <FilterInput name={name} value={filters[name] ?? ""} />
          </label>
        ))}
        <button type="submit">{t("runs.apply")}</button>
      </form>
    </details>
  );
}

function written(name: FilterName, given: string): string {
  return FILTERS[name] === "time" ? secondsOf(given) : given;
}

function FilterInput({ name, value }: { name: FilterName; value: string }) {
  const common = { id: `filter-${name}`, name };
  switch (FILTERS[name]) {
    case "time":
      return <input {...common} type="datetime-local" defaultValue={localTime(value)} />;
    case "number":
      return <input {...common} type="number" min={0} step="any" defaultValue={value} />;
    default:
      return <input {...common} defaultValue={value} autoComplete="off" spellCheck={false} />;
  }
}
