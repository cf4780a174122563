import { useInfiniteQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useText } from "../../i18n";
import { writeOut } from "../../lib/answer-form";
import {
  type Change,
  type ChangeFilters,
  changesPath,
  KINDS,
  OBJECT_KINDS,
  readChangeFilters,
} from "../../lib/changes";
import { ListAge } from "../../ui/age";
import { ChangeItem } from "../../ui/change-item";
import { CopyMenu } from "../../ui/copy-menu";
import { FilterForm } from "../../ui/filter-form";
import { Empty, Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { ChangeLinks } from "./links";
import { workspaceChangesQuery } from "./queries";

/** Administrative changes of the workspace, newest first. */
export function Changes() {
  const t = useText();
  const filters = useSearch({ from: "/changes" });
  const changes = useInfiniteQuery(workspaceChangesQuery(filters));
  const items = changes.data?.pages.flatMap((page) => page.items) ?? [];
  const { order: _, ...narrowing } = filters;
  const isFiltered = Object.values(narrowing).some((value) => value !== undefined);
  return (
    <main>
      <h1>{t("changes.all")}</h1>
      <Filters filters={filters} />
      {changes.isPending && <Loading what="changes.all" />}
      {changes.error !== null && <Problem error={changes.error} retry={() => void changes.refetch()} />}
      <ListAge of={changes} />
      {changes.isSuccess &&
        items.length === 0 &&
        (isFiltered ? (
          <Empty text="changes.noMatch" />
        ) : (
          <Empty text="changes.empty" command="runnel changes list" />
        ))}
      <ul className="plain">
        {items.map((change) => (
          <ChangeItem
            key={change.id}
            change={change}
            object={objectOf(t(OBJECT_KINDS[change.kind]), change)}
            links={<ChangeLinks change={change} />}
          />
        ))}
      </ul>
      <footer className="more">
        <span className="faint">{t("runs.loaded", { n: items.length })}</span>
        {changes.hasNextPage && (
          <button
            type="button"
            onClick={() => void changes.fetchNextPage()}
            disabled={changes.isFetchingNextPage}
          >
            {t("list.more")}
          </button>
        )}
        <CopyMenu acts={[{ label: t("changes.all"), call: { method: "GET", path: changesPath(filters) } }]} />
      </footer>
    </main>
  );
}

/** Kind and name of the changed object. A kind of a later gateway is shown as it is. */
function objectOf(kind: string | undefined, { kind: word, object_name, object_id }: Change): string {
  return `${kind ?? word} ${writeOut(object_name || object_id)}`;
}

function Filters({ filters }: { filters: ChangeFilters }) {
  const t = useText();
  const navigate = useNavigate({ from: "/changes" });
  const apply = (next: Record<string, string | undefined>) =>
    void navigate({ search: readChangeFilters({ ...filters, ...next }) });
  const isFiltered = Object.values(filters).some((value) => value !== undefined);
  return (
    <section className="filters" aria-label={t("runs.filters")}>
      <div className="quick">
        <select
          aria-label={t("changes.kind")}
          value={filters.kind ?? ""}
          onChange={(event) => apply({ kind: event.target.value })}
        >
          <option value="">{t("changes.anyKind")}</option>
          {KINDS.map((kind) => (
            <option key={kind} value={kind}>
              {t(OBJECT_KINDS[kind])}
            </option>
          ))}
        </select>
        <Authors actor={filters.actor} apply={apply} />
        <select
          aria-label={t("changes.order")}
          value={filters.order ?? ""}
          onChange={(event) => apply({ order: event.target.value })}
        >
          <option value="">{t("changes.newest")}</option>
          <option value="oldest">{t("changes.oldest")}</option>
        </select>
        {isFiltered && (
          <button type="button" className="quiet" onClick={() => void navigate({ search: {} })}>
            {t("runs.clear")}
          </button>
        )}
      </div>
      <FilterForm
        fields={[
          { name: "actor", label: t("filter.actor"), kind: "text" },
          { name: "object_id", label: t("filter.object_id"), kind: "text" },
          { name: "since", label: t("filter.since"), kind: "time" },
        ]}
        values={{ actor: filters.actor, object_id: filters.object_id, since: filters.since }}
        apply={apply}
      />
    </section>
  );
}

const AUTHORS = { config: "principal.config", cli: "principal.cli" } as const;

/** One click for the authors without a key. */
function Authors({
  actor,
  apply,
}: {
  actor: string | undefined;
  apply: (next: { actor?: string | undefined }) => void;
}) {
  const t = useText();
  return (
    <>
      <button type="button" aria-pressed={actor === undefined} onClick={() => apply({ actor: undefined })}>
        {t("changes.anyone")}
      </button>
      {(["config", "cli"] as const).map((author) => (
        <button
          key={author}
          type="button"
          aria-pressed={actor === author}
          onClick={() => apply({ actor: author })}
        >
          {t(AUTHORS[author])}
        </button>
      ))}
    </>
  );
}
