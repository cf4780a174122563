import { useQuery } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { runQuery } from "../../api/queries";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { writeOut } from "../../lib/answer-form";
import { APPROVAL_STATES, type Approval, usesOf } from "../../lib/approvals";
import { AgentName } from "../../ui/agent-name";
import { ConversationLink } from "../../ui/conversation-link";
import { ObjectChanges } from "../../ui/object-changes";
import { Badge, Facts, Loading } from "../../ui/parts";
import { PrincipalName } from "../../ui/principal";
import { Problem } from "../../ui/problem";
import { RuleList } from "../../ui/rules";
import { Text } from "../../ui/text";
import { When } from "../../ui/when";
import { QuestionLine } from "../inbox/answered";
import { ApprovalForm } from "./form";
import { approvalQuery, questionQuery } from "./queries";
import { RevokeApproval } from "./revoke";

/** An approval, or the form of a new one. */
export function ApprovalPage() {
  const t = useText();
  const rights = useRights();
  const { approvalId } = useParams({ from: "/approvals/$approvalId" });
  return (
    <main>
      {approvalId === "new" ? (
        <>
          <h1>{t("approvals.new")}</h1>
          {rights?.approves && <ApprovalForm />}
          {rights?.approves === false && <p className="faint">{t("rights.readOnly")}</p>}
        </>
      ) : (
        <StoredApproval key={approvalId} approvalId={approvalId} />
      )}
    </main>
  );
}

function StoredApproval({ approvalId }: { approvalId: string }) {
  const t = useText();
  const found = useQuery(approvalQuery(approvalId));
  const approval = found.data;
  return (
    <>
      {found.isPending && <Loading what="nav.approvals" />}
      {found.error !== null && <Problem error={found.error} retry={() => void found.refetch()} />}
      <h1>{approval === undefined ? t("nav.approvals") : writeOut(approval.tool)}</h1>
      {approval !== undefined && (
        <>
          <ApprovalFacts approval={approval} />
          <div className="actions">
            <RevokeApproval approval={approval} />
            <ObjectChanges kind="approval" id={approval.id} />
          </div>
          <h2>{t("approvals.arguments")}</h2>
          {approval.arguments == null ? (
            <p className="reason">{t("approvals.exact")}</p>
          ) : (
            <RuleList rules={approval.arguments} />
          )}
          {approval.interaction_id != null && <AskedBy interaction={approval.interaction_id} />}
        </>
      )}
    </>
  );
}

function ApprovalFacts({ approval }: { approval: Approval }) {
  const t = useText();
  const { status, scope, run_id: runId } = approval;
  const run = useQuery({ ...runQuery(runId ?? ""), enabled: runId != null, retry: false }).data;
  const { tone, text } = APPROVAL_STATES[status];
  const facts = [
    { label: t("run.status"), value: <Badge tone={tone}>{t(text)}</Badge> },
    { label: t("approvals.covers"), value: t(`approvals.scope.${scope}`) },
    { label: t("run.agent"), value: <AgentName agentId={approval.agent_id} /> },
    { label: t("run.conversation"), value: run?.conversation_id && <ConversationLink run={run} /> },
    {
      label: t("run.title"),
      value: runId != null && (
        <Link to="/runs/$runId" params={{ runId }}>
          {runId}
        </Link>
      ),
    },
    { label: t("approvals.uses"), value: usesOf(approval) },
    {
      label: t("approvals.lastUsed"),
      value: approval.last_used_at != null && <When at={approval.last_used_at} />,
    },
    { label: t("approvals.until"), value: <When at={approval.expires_at} /> },
    {
      label: t("approvals.by"),
      value: (
        <>
          <PrincipalName principal={approval.created_by} /> · <When at={approval.created_at} />
        </>
      ),
    },
    {
      label: t("approvals.revokedBy"),
      value: approval.revoked_by != null && (
        <>
          <PrincipalName principal={approval.revoked_by} /> · <When at={approval.revoked_at} />
        </>
      ),
    },
  ];
  return <Facts facts={facts.map(({ label, value }) => ({ label, value: value || null }))} />;
}

/** The answered question, with the exact call. */
function AskedBy({ interaction }: { interaction: string }) {
  const t = useText();
  const found = useQuery(questionQuery(interaction));
  const question = found.data;
  return (
    <section aria-label={t("approvals.question")}>
      <h2>{t("approvals.question")}</h2>
      {found.isPending && <Loading what="approvals.question" />}
      {found.error !== null && <Problem error={found.error} />}
      {question !== undefined && (
        <>
          <QuestionLine question={question} of={question.run_id} />
          <Text>{writeOut(question.request.description ?? question.request.fallback_text)}</Text>
        </>
      )}
    </section>
  );
}
