import { useQuery } from "@tanstack/react-query";
import { interactionsQuery, openQuestionsQuery } from "../../api/queries";
import { useText } from "../../i18n";
import { ListAge } from "../../ui/age";
import { Empty, Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { ClosedQuestions } from "./answered";
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
      {closed.length > 0 && (
        <>
          <h2>{t("inbox.closed")}</h2>
          <ClosedQuestions closed={closed} />
        </>
      )}
    </main>
  );
}
