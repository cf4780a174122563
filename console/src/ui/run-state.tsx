import { useQuery } from "@tanstack/react-query";
import type { Run } from "../api/client";
import { nextCursor, openQuestionsQuery } from "../api/queries";
import { useText } from "../i18n";
import { isAsking } from "../lib/waiting";
import { Badge } from "./parts";
import { Status } from "./status";

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
