import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { Interaction } from "../../api/client";
import { runQuery } from "../../api/queries";
import { type TextKey, useText } from "../../i18n";
import { writeOut } from "../../lib/answer-form";
import { partLabel } from "../../lib/approvals";
import { answeredFields, chosenAction } from "../../lib/chosen";
import { Badge } from "../../ui/parts";
import { PrincipalName } from "../../ui/principal";
import { RunState } from "../../ui/run-state";
import { When } from "../../ui/when";

const STATES: Record<string, { tone: string; text: TextKey }> = {
  open: { tone: "wait", text: "question.open" },
  submitted: { tone: "live", text: "question.submitted" },
  expired: { tone: "off", text: "question.expired" },
  cancelled: { tone: "off", text: "question.cancelled" },
};

const ACTION_TONES = { primary: "good", danger: "bad", default: "live" };

/** State of a question, or the action that was chosen. */
export function QuestionState({ question }: { question: Interaction }) {
  const t = useText();
  const action = chosenAction(question);
  if (action !== undefined) {
    return (
      <Badge tone={ACTION_TONES[action.style ?? "default"]}>{partLabel(t, question, "action", action)}</Badge>
    );
  }
  const state = STATES[question.status];
  return <Badge tone={state?.tone ?? "off"}>{state ? t(state.text) : question.status}</Badge>;
}

/** The values of the answer, its credential, and the run that continued unless the page shows it. */
export function AnsweredBy({ question, of }: { question: Interaction; of?: string }) {
  const t = useText();
  const next = question.submitted_run_id;
  const continued = next != null && next !== question.run_id ? next : null;
  const run = useQuery({ ...runQuery(continued ?? ""), enabled: continued !== null }).data;
  const { answer } = question;
  return (
    <>
      {answeredFields(question).map(({ id, label, value }) => (
        <span key={id}>
          {partLabel(t, question, "field", { id, label })}: <strong>{writeOut(value)}</strong> ·{" "}
        </span>
      ))}
      {answer != null && (
        <>
          {t("question.by")} <PrincipalName principal={answer.by} />{" "}
        </>
      )}
      {continued !== null && continued !== of && (
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

/** Closed questions with their answers. */
export function ClosedQuestions({ closed }: { closed: Interaction[] }) {
  const t = useText();
  return (
    <table className="list">
      <thead>
        <tr>
          <th>{t("inbox.result")}</th>
          <th>{t("inbox.question")}</th>
          <th>{t("inbox.closedAt")}</th>
        </tr>
      </thead>
      <tbody>
        {closed.map((question) => (
          <tr key={question.id}>
            <td>
              <QuestionState question={question} />
            </td>
            <td className="wide">
              <Link className="row" to="/runs/$runId" params={{ runId: question.run_id }}>
                {writeOut(question.request.title)}
              </Link>
              {question.status === "submitted" && (
                <p className="reason">
                  <AnsweredBy question={question} />
                </p>
              )}
            </td>
            <td>
              <When at={question.submitted_at ?? question.expires_at} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
