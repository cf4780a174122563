import { useQueryClient } from "@tanstack/react-query";
import { api, dataOf } from "../../api/client";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { writeOut } from "../../lib/answer-form";
import type { Approval } from "../../lib/approvals";
import { ConfirmButton } from "../../ui/confirm";

/** Revokes an active approval, for keys that may. */
export function RevokeApproval({ approval }: { approval: Approval }) {
  const t = useText();
  const client = useQueryClient();
  const rights = useRights();
  if (!rights?.approves || approval.status !== "active") return null;
  const revoke = async () => {
    const params = { path: { approval_id: approval.id } };
    await dataOf(api.POST("/v1/approvals/{approval_id}/revoke", { params }));
    await client.invalidateQueries({ queryKey: ["approvals"] });
  };
  return (
    <ConfirmButton
      label={t("approvals.revoke")}
      title={t("approvals.revokeTitle", { tool: writeOut(approval.tool) })}
      effect={t("approvals.revokeEffect")}
      confirm={t("approvals.revokeConfirm")}
      act={revoke}
    />
  );
}
