import { Link } from "@tanstack/react-router";
import { useText } from "../../i18n";
import { writeOut } from "../../lib/answer-form";
import { APPROVAL_STATES, type Approval, usesOf } from "../../lib/approvals";
import { AgentName } from "../../ui/agent-name";
import { Badge, Scroll } from "../../ui/parts";
import { PrincipalName } from "../../ui/principal";
import { useRowKeys } from "../../ui/row-keys";
import { RuleList } from "../../ui/rules";
import { When } from "../../ui/when";
import { RevokeApproval } from "./revoke";

/** Rules of a row. The page of an approval shows all. */
const ROW = { rules: 3, characters: 120 };

export function ApprovalTable({ approvals }: { approvals: Approval[] }) {
  const t = useText();
  const rows = useRowKeys();
  if (approvals.length === 0) return null;
  return (
    <Scroll>
      <table className="list">
        <thead>
          <tr>
            <th>{t("run.status")}</th>
            <th>{t("approvals.tool")}</th>
            <th>{t("approvals.covers")}</th>
            <th className="number">{t("approvals.uses")}</th>
            <th>{t("approvals.until")}</th>
            <th>{t("approvals.by")}</th>
            <td />
          </tr>
        </thead>
        <tbody ref={rows}>
          {approvals.map((approval) => (
            <ApprovalRow key={approval.id} approval={approval} />
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function ApprovalRow({ approval }: { approval: Approval }) {
  const t = useText();
  const { id, status, scope, agent_id, run_id, tool, arguments: rules } = approval;
  const { tone, text } = APPROVAL_STATES[status];
  return (
    <tr>
      <td>
        <Badge tone={tone}>{t(text)}</Badge>
      </td>
      <td className="wide">
        <Link className="row" to="/approvals/$approvalId" params={{ approvalId: id }}>
          {writeOut(tool)}
        </Link>
        {rules == null ? (
          <p className="reason">{t("approvals.exact")}</p>
        ) : (
          <RuleList rules={rules} max={ROW} />
        )}
      </td>
      <td>
        <AgentName agentId={agent_id} />
        <p className="reason">
          {run_id == null ? (
            t(`approvals.scope.${scope}`)
          ) : (
            <Link to="/runs/$runId" params={{ runId: run_id }}>
              {t(`approvals.scope.${scope}`)}
            </Link>
          )}
        </p>
      </td>
      <td className="number">{usesOf(approval)}</td>
      <td>
        <When at={approval.expires_at} />
      </td>
      <td>
        <PrincipalName principal={approval.created_by} />
        <p className="reason">
          <When at={approval.created_at} />
        </p>
      </td>
      <td>
        <RevokeApproval approval={approval} />
      </td>
    </tr>
  );
}
