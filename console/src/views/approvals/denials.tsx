import { useQuery } from "@tanstack/react-query";
import { interactionsQuery } from "../../api/queries";
import { useText } from "../../i18n";
import { type ApprovalFilters, isDenial } from "../../lib/approvals";
import { PAGE } from "../../lib/pages";
import { Loading } from "../../ui/parts";
import { Problem } from "../../ui/problem";
import { ClosedQuestions } from "../inbox/answered";

/** The newest calls that were denied, with the reason and the answer's key or link. */
export function Denials({ filters: { tool = "" } }: { filters: ApprovalFilters }) {
  const t = useText();
  const answered = useQuery(interactionsQuery({ status: "submitted" }));
  const denials = (answered.data?.items ?? []).filter(
    (question) => isDenial(question) && question.request.title.includes(tool),
  );
  return (
    <section aria-label={t("approvals.denials")}>
      <h2>{t("approvals.denials")}</h2>
      <p className="faint">{t("approvals.denialsHelp", { n: PAGE })}</p>
      {answered.isPending && <Loading what="approvals.denials" />}
      {answered.error !== null && <Problem error={answered.error} />}
      {answered.isSuccess && denials.length === 0 && <p className="faint">{t("approvals.noDenials")}</p>}
      {denials.length > 0 && <ClosedQuestions closed={denials} />}
    </section>
  );
}
