import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { type FormEvent, useRef, useState } from "react";
import { api, dataOf, type Interaction } from "../../api/client";
import { faultsOf } from "../../api/errors";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { answerCall } from "../../lib/acts";
import { submittedValues, writeOut } from "../../lib/answer-form";
import { callValues, firstValues, isCallQuestion, partLabel, RULES_FIELD } from "../../lib/approvals";
import { faultsAt, faultsElsewhere, pointerTo, type Refusal, standingFaults } from "../../lib/field-faults";
import { CopyMenu } from "../../ui/copy-menu";
import { useFaultFocus } from "../../ui/field-faults";
import { Problem } from "../../ui/problem";
import { RulesField } from "../../ui/rules";
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
  const isCall = isCallQuestion(question);
  const [values, setValues] = useState(() => firstValues(question));
  const [refusal, setRefusal] = useState<Refusal | null>(null);
  const form = useRef<HTMLFormElement>(null);
  useFaultFocus(form, refusal);
  const sent = (actionId: string | null) => {
    const given = submittedValues(fields, values);
    return isCall ? callValues(actionId, given) : given;
  };
  const answer = useMutation({
    mutationFn: (actionId: string | null) => {
      const body = {
        interaction_id: request.interaction_id,
        values: sent(actionId),
        ...(actionId === null ? {} : { action_id: actionId }),
      };
      const params = { path: { interaction: question.id } };
      return dataOf(api.POST("/v1/interactions/{interaction}/submit", { params, body }));
    },
    onError: (error) => setRefusal({ sent: { values }, faults: faultsOf(error) }),
    // An answer from elsewhere is a refusal here: the list shows it, too.
    onSettled: () => client.invalidateQueries({ queryKey: ["interactions"] }),
  });
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const { submitter } = event.nativeEvent as SubmitEvent;
    answer.mutate(submitter?.getAttribute("value") || null);
  };
  const faults = standingFaults(refusal, { values });
  const pointers = fields.map(({ id }) => pointerTo("values", id));
  const { error } = answer;
  const isPlaced = faultsOf(error).length > 0 && faultsElsewhere(faultsOf(error), pointers).length === 0;
  return (
    <form
      ref={form}
      className="question card"
      onSubmit={submit}
      onKeyDown={(event) => {
        // The key chooses the first action: from the reason of a denial it would allow the call.
        if (event.key === "Enter" && event.target instanceof HTMLInputElement && actions.length > 1)
          event.preventDefault();
      }}
    >
      <h2>{writeOut(request.title)}</h2>
      {request.description && <Text>{writeOut(request.description)}</Text>}
      {!request.description && fields.length === 0 && <Text>{writeOut(request.fallback_text)}</Text>}
      {fields.map((field) => {
        const pointer = pointerTo("values", field.id);
        const parts = {
          value: values[field.id],
          set: (value: unknown) => setValues((before) => ({ ...before, [field.id]: value })),
          label: partLabel(t, question, "field", field),
          faults: faultsAt(faults, pointer),
        };
        return isCall && field.id === RULES_FIELD ? (
          <RulesField key={field.id} {...parts} value={`${parts.value ?? ""}`} pointer={pointer} />
        ) : (
          <QuestionField key={field.id} field={field} {...parts} />
        );
      })}
      {error !== null && !isPlaced && <Problem error={error} />}
      <div className="actions" hidden={!rights?.answers}>
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
            {partLabel(t, question, "action", action)}
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
          label: action.id === null ? action.label : partLabel(t, question, "action", action),
          call: answerCall(question, action.id, sent(action.id)),
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
