import { useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { api, dataOf } from "../../api/client";
import { useText } from "../../i18n";
import { ConfirmButton } from "../../ui/confirm";
import { Dialog } from "../../ui/dialog";
import { DiffView } from "../../ui/diff";
import { type Agent, agentQuery } from "./queries";

interface SaveDialogProps {
  before: string;
  after: string;
  isSaving: boolean;
  save: () => void;
  close: () => void;
  children: ReactNode;
}

/** The change of an agent, before it is saved. */
export function SaveDialog({ before, after, isSaving, save, close, children }: SaveDialogProps) {
  const t = useText();
  return (
    <Dialog title={t("agents.saveTitle")} close={close}>
      <DiffView before={before} after={after} />
      {children}
      <div className="actions">
        <button type="button" className="primary" disabled={isSaving || before === after} onClick={save}>
          {t("agents.save")}
        </button>
        <button type="button" onClick={close}>
          {t("agents.back")}
        </button>
      </div>
    </Dialog>
  );
}

export function DeleteAgent({ agent }: { agent: Agent }) {
  const t = useText();
  const client = useQueryClient();
  const navigate = useNavigate();
  const remove = async () => {
    const params = { path: { agent_id: agent.id }, header: { "If-Match": agent.version } };
    await dataOf(api.DELETE("/v1/agents/{agent_id}", { params }));
    await navigate({ to: "/agents", ignoreBlocker: true });
    client.removeQueries({ queryKey: agentQuery(agent.id).queryKey });
    await client.invalidateQueries({ queryKey: ["agents"] });
  };
  return (
    <ConfirmButton
      label={t("agents.delete")}
      title={t("agents.deleteTitle", { name: agent.name })}
      effect={t("agents.deleteEffect")}
      confirm={t("agents.deleteConfirm")}
      act={remove}
    />
  );
}
