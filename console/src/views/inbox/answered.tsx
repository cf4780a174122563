import { queryOptions, skipToken, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { Interaction, Schema } from "../../api/client";
import { runQuery } from "../../api/queries";
import { type TextKey, useText } from "../../i18n";
import { writeOut } from "../../lib/answer-form";
import { KeyName } from "../../ui/key-name";
import { Badge } from "../../ui/parts";
import { RunState } from "../../ui/run-state";
import { When } from "../../ui/when";

type Action = Schema<"InteractionAction">;

/** The action that this page has sent as the answer. The API does not return it. */
export function sentActionQuery(questionId: string) {
  return queryOptions<Action>({
    queryKey: ["sent-action", questionId],
    queryFn: skipToken,
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: Number.POSITIVE_INFINITY,
  });
}

const STATES: Record<string, { tone: string; text: TextKey }> = {
  open: { tone: "wait", text: "question.open" },
  submitted: { tone: "live", text: "question.submitted" },
  expired: { tone: "off", text: "question.expired" },
  cancelled: { tone: "off", text: "question.cancelled" },
};

const ACTION_TONES = { primary: "good", danger: "bad", default: "live" };

/** State of a question, or its answer if it was sent here. An unknown answer is no approval. */
export function QuestionState({ question }: { question: Interaction }) {
  const t = useText();
  const sent = useQuery(sentActionQuery(question.id)).data;
  if (sent !== undefined && question.status === "submitted") {
    return <Badge tone={ACTION_TONES[sent.style ?? "default"]}>{writeOut(sent.label)}</Badge>;
  }
  const state = STATES[question.status];
  return <Badge tone={state?.tone ?? "off"}>{state ? t(state.text) : question.status}</Badge>;
}

/** The key that answered, and the run that continued unless the page shows it. An awaited answer names neither. */
export function AnsweredBy({ question, of }: { question: Interaction; of?: string }) {
  const t = useText();
  const next = question.submitted_run_id;
  const continued = next != null && next !== question.run_id ? next : null;
  const run = useQuery({ ...runQuery(continued ?? ""), enabled: continued !== null }).data;
  if (continued === null) return null;
  return (
    <>
      {run !== undefined && (
        <>
          {t("question.by")} {run.posted_by ? <KeyName keyId={run.posted_by} /> : t("question.byLink")}{" "}
        </>
      )}
      {continued !== of && (
        <>
          ·{" "}
          <Link to="/runs/$runId" params={{ runId: continued }}>
            {t("question.continued")}
          </Link>{" "}
          {run !== undefined && <RunState run={run} />}
        </>
      )}
    </>
  );
}

/** One line for a question of a run: its state, its answer, and where that led. */
export function QuestionLine({ question, of }: { question: Interaction; of: string }) {
  const t = useText();
  const { status } = question;
  return (
    <p className="reason">
      <QuestionState question={question} /> {writeOut(question.request.title)} ·{" "}
      {status === "open" ? (
        <>
          {t("inbox.expires")} <When at={question.expires_at} /> · <Link to="/inbox">{t("nav.inbox")}</Link>
        </>
      ) : (
        <When at={question.submitted_at ?? question.expires_at} />
      )}{" "}
      {status === "submitted" && <AnsweredBy question={question} of={of} />}
    </p>
  );
}
