import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { Interaction } from "../../api/client";
import { interactionsQuery, openQuestionsQuery } from "../../api/queries";
import { useText } from "../../i18n";
import { writeOut } from "../../lib/answer-form";
import { ListAge } from "../../ui/age";
import { Empty, Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { When } from "../../ui/when";
import { AnsweredBy, QuestionState } from "./answered";
import { Question } from "./question";

/** All open questions, the first to expire at the top, and the recent ones that are closed. */
export function Inbox() {
  const t = useText();
  const open = useQuery(openQuestionsQuery());
  const all = useQuery(interactionsQuery({}));
  const waiting = open.data?.items ?? [];
  const closed = (all.data?.items ?? []).filter((question) => question.status !== "open");
  return (
    <main>
      <h1>{t("nav.inbox")}</h1>
      {open.isPending && <Loading what="nav.inbox" />}
      {open.error !== null && <Problem error={open.error} retry={() => void open.refetch()} />}
      <ListAge of={open} />
      {open.isSuccess && waiting.length === 0 && <Empty text="inbox.none" />}
      {waiting.map((question) => (
        <Question key={question.id} question={question} />
      ))}
      {closed.length > 0 && <Closed closed={closed} />}
    </main>
  );
}

function Closed({ closed }: { closed: Interaction[] }) {
  const t = useText();
  return (
    <>
      <h2>{t("inbox.closed")}</h2>
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
    </>
  );
}
