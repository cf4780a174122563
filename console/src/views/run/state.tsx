import { queryOptions, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { api, dataOf, type Run } from "../../api/client";
import { interactionsQuery } from "../../api/queries";
import { useText } from "../../i18n";
import { answeredQuestion, isAsking } from "../../lib/waiting";
import { isLive } from "../../ui/status";
import { QuestionLine } from "../inbox/answered";

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
          <QuestionLine question={answered} of={run.run_id} />
        </>
      )}
      {asked.data?.items.map((question) => (
        <QuestionLine key={question.id} question={question} of={run.run_id} />
      ))}
    </>
  );
}
