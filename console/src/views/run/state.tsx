import { queryOptions, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { api, dataOf, type Run } from "../../api/client";
import { interactionsQuery, nextCursor, openQuestionsQuery } from "../../api/queries";
import { useText } from "../../i18n";
import { answeredQuestion, isAsking } from "../../lib/waiting";
import { Badge } from "../../ui/parts";
import { isLive, Status } from "../../ui/status";
import { QuestionLine } from "../inbox/answered";

type Stated = Pick<Run, "run_id" | "status" | "status_reason">;

/** Status of a run. A run that ended with a question waits until the question is closed. */
export function RunState({ run }: { run: Stated }) {
  const t = useText();
  const asks = isAsking(run);
  const open = useQuery({ ...openQuestionsQuery(), enabled: asks }).data;
  if (run.status === "completed" && run.status_reason === "actions_failed") {
    return <Badge tone="bad">{t("status.actionsFailed")}</Badge>;
  }
  if (!asks) return <Status status={run.status} />;
  const isOpen =
    open === undefined ||
    nextCursor(open) !== undefined ||
    open.items.some((question) => question.run_id === run.run_id);
  return <Badge tone={isOpen ? "wait" : "off"}>{t(isOpen ? "status.asking" : "status.asked")}</Badge>;
}

function interactionQuery(questionId: string) {
  const path = { interaction: questionId };
  return queryOptions({
    queryKey: ["interactions", "one", questionId],
    queryFn: ({ signal }) => dataOf(api.GET("/v1/interactions/{interaction}", { params: { path }, signal })),
  });
}

/** The question whose answer started this run; undefined for other runs and while it is read. */
export function useAnswered(run: Run) {
  const questionId = answeredQuestion(run);
  return useQuery({ ...interactionQuery(questionId ?? ""), enabled: questionId !== null }).data;
}

/** The question that this run continues after, and the questions that it asked. */
export function RunQuestions({ run }: { run: Run }) {
  const t = useText();
  const answered = useAnswered(run);
  const asked = useQuery({
    ...interactionsQuery({ run_id: run.run_id }),
    refetchInterval: isLive(run.status) || isAsking(run) ? 3000 : false,
  });
  return (
    <>
      {answered !== undefined && (
        <>
          <p className="reason">
            {t("run.continues")}{" "}
            <Link to="/runs/$runId" params={{ runId: answered.run_id }}>
              {answered.run_id}
            </Link>
          </p>
          <QuestionLine question={answered} />
        </>
      )}
      {asked.data?.items.map((question) => (
        <QuestionLine key={question.id} question={question} />
      ))}
    </>
  );
}
