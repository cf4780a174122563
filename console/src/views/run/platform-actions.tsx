import { useInfiniteQuery } from "@tanstack/react-query";
import type { Run } from "../../api/client";
import { useText } from "../../i18n";
import { actionsQuery } from "../actions/queries";
import { ActionTable } from "../actions/table";

/** Platform actions that the run has requested. Nothing without one. */
export function RunPlatformActions({ run }: { run: Run }) {
  const t = useText();
  const actions = useInfiniteQuery(actionsQuery({ run_id: run.run_id }));
  const items = actions.data?.pages.flatMap((page) => page.items) ?? [];
  if (items.length === 0) return null;
  return (
    <section aria-label={t("nav.actions")}>
      <h2>{t("nav.actions")}</h2>
      <ActionTable actions={items} />
      {actions.hasNextPage && (
        <button
          type="button"
          onClick={() => void actions.fetchNextPage()}
          disabled={actions.isFetchingNextPage}
        >
          {t("list.more")}
        </button>
      )}
    </section>
  );
}
