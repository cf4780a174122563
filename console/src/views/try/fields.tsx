import { useId } from "react";
import { type TextKey, useText } from "../../i18n";
import type { EventForm } from "../../lib/compose";

const FIELDS: { name: Exclude<keyof EventForm, "text">; label: TextKey }[] = [
  { name: "eventType", label: "try.eventType" },
  { name: "conversationId", label: "filter.conversation_id" },
  { name: "botId", label: "filter.bot_id" },
  { name: "threadId", label: "filter.thread_id" },
  { name: "actorName", label: "try.actor" },
];

export function EventFields({
  form,
  change,
}: {
  form: EventForm;
  change: (fields: Partial<EventForm>) => void;
}) {
  const t = useText();
  const id = useId();
  return (
    <>
      <div className="field">
        <label htmlFor={id}>{t("try.text")}</label>
        <textarea
          id={id}
          rows={4}
          value={form.text}
          onChange={(event) => change({ text: event.target.value })}
        />
      </div>
      <div className="columns">
        {FIELDS.map(({ name, label }) => (
          <label key={name}>
            {t(label)}
            <input
              value={form[name]}
              autoComplete="off"
              onChange={(event) => change({ [name]: event.target.value })}
            />
          </label>
        ))}
      </div>
    </>
  );
}
