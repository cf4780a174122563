import { useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { api, dataOf } from "../../api/client";
import { useText } from "../../i18n";
import type { Change } from "../../lib/changes";
import { ChangeItem } from "../../ui/change-item";
import { ConfirmButton } from "../../ui/confirm";
import { Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { type Agent, changesQuery } from "./queries";

/** Changes of an agent, newest first, each with the old and new values. */
export function AgentHistory({ agent, isEditable }: { agent: Agent; isEditable: boolean }) {
  const t = useText();
  // The version is part of the key: each saved change renews the list.
  const changes = useInfiniteQuery(changesQuery(agent.id, agent.version));
  const items = changes.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <section aria-label={t("changes.title")}>
      <h2>{t("changes.title")}</h2>
      {changes.isPending && <Loading what="changes.title" />}
      {changes.error !== null && <Problem error={changes.error} />}
      {changes.isSuccess && items.length === 0 && <p className="faint">{t("changes.none")}</p>}
      <ul className="plain">
        {items.map((change) => (
          <ChangeItem key={change.id} change={change}>
            {isEditable && change.version !== agent.version && <Restore agent={agent} change={change} />}
          </ChangeItem>
        ))}
      </ul>
      {changes.hasNextPage && (
        <button
          type="button"
          onClick={() => void changes.fetchNextPage()}
          disabled={changes.isFetchingNextPage}
        >
          {t("list.more")}
        </button>
      )}
    </section>
  );
}

/** Gives the agent the settings that it had after the change, unless it was changed meanwhile. */
function Restore({ agent, change }: { agent: Agent; change: Change }) {
  const t = useText();
  const client = useQueryClient();
  const params = { path: { agent_id: agent.id }, header: { "If-Match": agent.version } };
  const restore = async () => {
    const body = { change_id: change.id };
    await dataOf(api.POST("/v1/agents/{agent_id}/restore", { params, body }));
    await client.invalidateQueries({ queryKey: ["agents"] });
  };
  return (
    <ConfirmButton
      label={t("changes.restore")}
      title={t("changes.restoreTitle")}
      effect={t("changes.restoreEffect")}
      confirm={t("changes.restoreConfirm")}
      act={restore}
      className="quiet"
    />
  );
}
