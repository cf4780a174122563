import { useMutation, useQuery } from "@tanstack/react-query";
import { Link, useLocation, useSearch } from "@tanstack/react-router";
import { type FormEvent, useEffect, useState } from "react";
import { api, dataOf, type Schema } from "../../api/client";
import { newKey, usePost } from "../../api/post";
import { runQuery } from "../../api/queries";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { dryRunCall, postCall } from "../../lib/acts";
import { composeEvent, EMPTY_FORM, type EventEnvelope, type EventForm, parseEvent } from "../../lib/compose";
import { pretty } from "../../lib/format";
import { CopyMenu } from "../../ui/copy-menu";
import { Problem } from "../../ui/problem";
import { RunState } from "../../ui/run-state";
import { StreamedAnswer } from "../run/answer";
import { AgentLink, Reason } from "../run/header";
import { Questions } from "../run/questions";
import { DryRun } from "./dry-run";
import { EventFields } from "./fields";

type Accepted = Schema<"EventAccepted">;

interface Draft {
  form: EventForm;
  json: string | null;
}

/** Forms by entry of the browser history, until the page is loaded again. */
const drafts = new Map<string, Draft>();

/** Composes an event, shows what it would do, sends it, and shows the answer. */
export function Try() {
  const t = useText();
  const given = useSearch({ from: "/try" });
  // Back and forward find the form as it was left.
  const entry = useLocation().state.__TSR_key ?? "";
  const draft = drafts.get(entry);
  const [form, setForm] = useState<EventForm>(
    draft?.form ?? {
      ...EMPTY_FORM,
      eventType: given.event_type ?? EMPTY_FORM.eventType,
      text: given.text ?? "",
      conversationId: given.conversation_id ?? "",
      botId: given.bot_id ?? "",
      threadId: given.thread_id ?? "",
    },
  );
  // The text of the event after an edit; null while the form writes it.
  const [json, setJson] = useState<string | null>(draft?.json ?? null);
  useEffect(() => {
    drafts.set(entry, { form, json });
  }, [entry, form, json]);
  const parsed = json === null ? { event: composeEvent(form) } : parseEvent(json);
  const event = "event" in parsed ? parsed.event : null;
  return (
    <main>
      <h1>{t("nav.try")}</h1>
      <div className="quick">
        <button type="button" aria-pressed={json === null} onClick={() => setJson(null)}>
          {t("try.form")}
        </button>
        <button
          type="button"
          aria-pressed={json !== null}
          onClick={() => setJson(json ?? pretty(composeEvent(form)))}
        >
          JSON
        </button>
      </div>
      {json === null ? (
        <EventFields form={form} change={(fields: Partial<EventForm>) => setForm({ ...form, ...fields })} />
      ) : (
        <textarea
          aria-label={t("try.json")}
          rows={16}
          value={json}
          spellCheck={false}
          onChange={(change) => setJson(change.target.value)}
        />
      )}
      {"fault" in parsed && <p className="problem">{parsed.fault}</p>}
      {event !== null && <Send event={event} />}
    </main>
  );
}

function Send({ event }: { event: EventEnvelope }) {
  const t = useText();
  const rights = useRights();
  const [accepted, setAccepted] = useState<Accepted | null>(null);
  const [key, setKey] = useState(newKey);
  const post = usePost((next) => {
    setAccepted(next);
    setKey(newKey());
  });
  const dryRun = useMutation({
    mutationFn: () => dataOf(api.POST("/v1/agents/dry-run", { body: event })),
  });
  const send = (submit: FormEvent) => {
    submit.preventDefault();
    setAccepted(null);
    dryRun.reset();
    post.mutate({ event, key });
  };
  return (
    <>
      <form className="actions" onSubmit={send}>
        <button type="button" disabled={dryRun.isPending} onClick={() => dryRun.mutate()}>
          {t("try.dryRun")}
        </button>
        <button type="submit" className="primary" hidden={!rights?.posts} disabled={post.isPending}>
          {t("try.send")}
        </button>
        <CopyMenu
          acts={[
            { label: t("try.send"), call: postCall(event) },
            { label: t("try.dryRun"), call: dryRunCall(event) },
          ]}
        />
      </form>
      {post.error !== null && <Problem error={post.error} />}
      {dryRun.error !== null && <Problem error={dryRun.error} />}
      {dryRun.data !== undefined && <DryRun outcome={dryRun.data} />}
      {accepted !== null && <Sent accepted={accepted} />}
    </>
  );
}

function Sent({ accepted }: { accepted: Accepted }) {
  const t = useText();
  const { run_id: runId } = accepted;
  if (runId == null) {
    return (
      <p className="problem">
        {accepted.reason && <code>{accepted.reason}</code>} {accepted.hint ?? t("try.noRun")}
      </p>
    );
  }
  return <SentRun accepted={accepted} runId={runId} />;
}

function SentRun({ accepted, runId }: { accepted: Accepted; runId: string }) {
  const t = useText();
  const run = useQuery(runQuery(runId)).data;
  return (
    <section className="answer">
      <h2>
        {t("run.answer")} {run && <RunState run={run} />} {run && t("try.answeredBy")}{" "}
        {run && <AgentLink run={run} />}{" "}
        <Link to="/runs/$runId" params={{ runId }}>
          {t("try.openRun")}
        </Link>
      </h2>
      {run && <Reason run={run} />}
      <Questions run={{ run_id: runId, status: accepted.status ?? "running" }} />
      <StreamedAnswer key={runId} runId={runId} lastSequence={accepted.last_sequence ?? 0} />
    </section>
  );
}
