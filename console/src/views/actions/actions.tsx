import { useInfiniteQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useText } from "../../i18n";
import { ACTION_STATUSES, type ActionFilters } from "../../lib/platform-actions";
import { ListAge } from "../../ui/age";
import { AgentChoice } from "../../ui/agent-choice";
import { Empty, Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { actionsQuery } from "./queries";
import { ActionTable } from "./table";

/** Platform actions of all runs that the key reaches, newest first. */
export function PlatformActions() {
  const t = useText();
  const filters = useSearch({ from: "/actions" });
  const actions = useInfiniteQuery(actionsQuery(filters));
  const items = actions.data?.pages.flatMap((page) => page.items) ?? [];
  const isFiltered = Object.values(filters).some((value) => value !== undefined);
  return (
    <main>
      <h1>{t("nav.actions")}</h1>
      <Filters filters={filters} />
      {actions.isPending && <Loading what="nav.actions" />}
      {actions.error !== null && <Problem error={actions.error} retry={() => void actions.refetch()} />}
      <ListAge of={actions} />
      {/* A filtered page may be empty although there are more. */}
      {actions.isSuccess && items.length === 0 && !actions.hasNextPage && (
        <Empty text={isFiltered ? "actions.noMatch" : "actions.none"} />
      )}
      <ActionTable actions={items} hasRun />
      {actions.hasNextPage && (
        <button
          type="button"
          onClick={() => void actions.fetchNextPage()}
          disabled={actions.isFetchingNextPage}
        >
          {t("list.more")}
        </button>
      )}
    </main>
  );
}

function Filters({ filters }: { filters: ActionFilters }) {
  const t = useText();
  const navigate = useNavigate({ from: "/actions" });
  const apply = (next: ActionFilters) => void navigate({ search: { ...filters, ...next } });
  return (
    <section className="filters" aria-label={t("runs.filters")}>
      <div className="quick">
        {[undefined, ...ACTION_STATUSES].map((status) => (
          <button
            key={status ?? ""}
            type="button"
            aria-pressed={filters.status === status}
            onClick={() => apply({ status })}
          >
            {t(status === undefined ? "runs.all" : `actions.${status}`)}
          </button>
        ))}
        <AgentChoice
          value={filters.agent_id ?? ""}
          set={(agent_id) => apply({ agent_id: agent_id === "" ? undefined : agent_id })}
        />
      </div>
    </section>
  );
}
