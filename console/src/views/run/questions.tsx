import { useQuery } from "@tanstack/react-query";
import type { Run } from "../../api/client";
import { interactionsQuery } from "../../api/queries";
import { isLive } from "../../ui/status";
import { Question } from "../inbox/question";

/** Open questions of this run, to answer on its page. */
export function Questions({ run }: { run: Pick<Run, "run_id" | "status"> }) {
  const open = useQuery({
    ...interactionsQuery({ run_id: run.run_id, status: "open" }),
    // A question may outlive its run; it cannot appear afterwards.
    refetchInterval: isLive(run.status) ? 2000 : false,
  });
  return open.data?.items.map((question) => <Question key={question.id} question={question} />);
}
