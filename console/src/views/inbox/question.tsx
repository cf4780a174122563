import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { api, dataOf, type Interaction } from "../../api/client";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { answerCall } from "../../lib/acts";
import { initialValues, submittedValues, writeOut } from "../../lib/answer-form";
import { CopyMenu } from "../../ui/copy-menu";
import { Problem } from "../../ui/problem";
import { Text } from "../../ui/text";
import { When } from "../../ui/when";
import { QuestionField } from "./field";

/** An open question, answered in place. Leaving it open denies nothing. */
export function Question({ question }: { question: Interaction }) {
  const t = useText();
  const client = useQueryClient();
  const rights = useRights();
  const { request } = question;
  const fields = request.fields ?? [];
  const actions = request.actions ?? [];
  const [values, setValues] = useState(() => initialValues(fields));
  const answer = useMutation({
    mutationFn: (actionId: string | null) => {
      const body = {
        interaction_id: request.interaction_id,
        values: submittedValues(fields, values),
        ...(actionId === null ? {} : { action_id: actionId }),
      };
      const params = { path: { interaction: question.id } };
      return dataOf(api.POST("/v1/interactions/{interaction}/submit", { params, body }));
    },
    // An answer from elsewhere is a refusal here: the list shows it, too.
    onSettled: () => client.invalidateQueries({ queryKey: ["interactions"] }),
  });
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const { submitter } = event.nativeEvent as SubmitEvent;
    answer.mutate(submitter?.getAttribute("value") || null);
  };
  return (
    <form className="question card" onSubmit={submit}>
      <h2>{writeOut(request.title)}</h2>
      {request.description && <Text>{writeOut(request.description)}</Text>}
      {!request.description && fields.length === 0 && <Text>{writeOut(request.fallback_text)}</Text>}
      {fields.map((field) => (
        <QuestionField
          key={field.id}
          field={field}
          value={values[field.id]}
          set={(value) => setValues((before) => ({ ...before, [field.id]: value }))}
        />
      ))}
      {answer.error !== null && <Problem error={answer.error} />}
      <div className="actions" hidden={!rights?.acts}>
        {actions.map((action) => (
          <button
            key={action.id}
            type="submit"
            value={action.id}
            className={action.style === "default" ? "" : action.style}
            disabled={answer.isPending}
            // One of several actions may be to leave the form.
            formNoValidate={actions.length > 1}
          >
            {writeOut(action.label)}
          </button>
        ))}
        {actions.length === 0 && (
          <button type="submit" className="primary" disabled={answer.isPending}>
            {t("inbox.send")}
          </button>
        )}
      </div>
      <CopyMenu
        acts={(actions.length === 0 ? [{ id: null, label: t("inbox.send") }] : actions).map((action) => ({
          label: writeOut(action.label),
          call: answerCall(question, action.id, submittedValues(fields, values)),
        }))}
      />
      <p className="faint">
        {t("inbox.asked")} <When at={question.asked_at} /> · {t("inbox.expires")}{" "}
        <When at={question.expires_at} /> ·{" "}
        <Link to="/runs/$runId" params={{ runId: question.run_id }}>
          {t("run.title")}
        </Link>
      </p>
    </form>
  );
}
