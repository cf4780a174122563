import { queryOptions, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { api, dataOf, type Schema } from "../../api/client";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { count, duration, money } from "../../lib/format";
import { budgetAnchor, spenders } from "../../lib/usage";
import { useLinked } from "../../ui/linked";
import { Badge, Empty, Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { FAILED } from "../../ui/status";
import { When } from "../../ui/when";
import { UsageReport } from "./report";

type Budget = Schema<"BudgetView">;
type Measure = keyof Schema<"Bounds">;

const RENEW_MS = 5000;
const MEASURES: Measure[] = ["cost", "tokens", "calls", "seconds"];

function budgetsQuery() {
  return queryOptions({
    queryKey: ["budgets"],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/budgets", { signal })),
    refetchInterval: RENEW_MS,
  });
}

const EXAMPLE = `[[budgets]]
name = "each-agent-a-day"
scope = "agent"
window = "day"
cost = 5.0`;

/** Use by day, and budgets: what is used, what is left, and the next reset. */
export function Usage() {
  const t = useText();
  const rights = useRights();
  return (
    <main>
      <h1>{t("nav.usage")}</h1>
      <UsageReport />
      {rights?.readsAdmin && <Budgets />}
    </main>
  );
}

function Budgets() {
  const t = useText();
  const budgets = useQuery(budgetsQuery());
  return (
    <section aria-label={t("budgets.title")}>
      <h2>{t("budgets.title")}</h2>
      {budgets.isPending && <Loading what="budgets.title" />}
      {budgets.error !== null && <Problem error={budgets.error} retry={() => void budgets.refetch()} />}
      {budgets.data?.items.length === 0 && <Empty text="budgets.none" command={EXAMPLE} />}
      {budgets.data?.items.map((budget) => (
        <BudgetCard key={budget.name} budget={budget} />
      ))}
    </section>
  );
}

function BudgetCard({ budget }: { budget: Budget }) {
  const t = useText();
  const measures = MEASURES.filter((measure) => budget.most[measure] != null);
  const anchor = budgetAnchor(budget.name);
  const { ref, isLinked } = useLinked<HTMLElement>(anchor);
  return (
    <article className={isLinked ? "card linked" : "card"} id={anchor} ref={ref}>
      <h3>
        {budget.name} <Badge tone="off">{budget.scope}</Badge> <Badge tone="off">{budget.window}</Badge>
      </h3>
      <p className="faint">
        {budget.only} {budget.resets_at != null && t("budgets.resets")}{" "}
        {budget.resets_at != null && <When at={budget.resets_at} />}
      </p>
      {budget.used.length === 0 && <p className="faint">{t("budgets.unused")}</p>}
      {budget.used.map((used) => (
        <div key={used.id} className="used">
          <p>
            {used.name ?? used.id} <Spenders budget={budget} subject={used.id} />
          </p>
          {measures.map((measure) => (
            <Meter key={measure} measure={measure} used={used[measure]} most={budget.most[measure] ?? 0} />
          ))}
        </div>
      ))}
    </article>
  );
}

/** Links to the runs that a subject spends on, and to those that failed, as refused ones do. */
function Spenders({ budget, subject }: { budget: Budget; subject: string }) {
  const t = useText();
  const runs = spenders(budget, subject);
  if (runs === undefined) {
    return (
      <Link to="/runs/$runId" params={{ runId: subject }}>
        {t("budgets.run")}
      </Link>
    );
  }
  return (
    <>
      <Link to="/runs" search={runs}>
        {t("budgets.spenders")}
      </Link>{" "}
      <Link to="/runs" search={{ ...runs, statuses: FAILED.join(",") }}>
        {t("budgets.failed")}
      </Link>
    </>
  );
}

function write(measure: Measure, value: number): string {
  if (measure === "cost") return money(value);
  return measure === "seconds" ? duration(value * 1000) : count(value);
}

function Meter({ measure, used, most }: { measure: Measure; used: number; most: number }) {
  const t = useText();
  const label = t(`budgets.${measure}`);
  return (
    <div className="meter">
      <span>{label}</span>
      <meter min={0} max={most} high={most * 0.9} optimum={0} value={used} aria-label={label} />
      <span className="number">
        {write(measure, used)} / {write(measure, most)}
      </span>
    </div>
  );
}
