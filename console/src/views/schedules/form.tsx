import { useQuery } from "@tanstack/react-query";
import { agentsQuery } from "../../api/queries";
import { useText } from "../../i18n";
import { localTime, secondsOf } from "../../lib/filters";
import { MISFIRES, withConversation, withText } from "../../lib/schedules";
import { Field } from "../../ui/field-faults";
import { Json } from "../../ui/parts";
import { NameSelect } from "../../ui/picker";
import {
  CheckField,
  SelectField,
  type SpecFields,
  SpecForm,
  type Stored,
  TextField,
} from "../../ui/spec-form";
import type { ScheduleSpec } from "./queries";

const TEXT = "/event/input";
const CONVERSATION = "/event/conversation";
const POINTERS = [
  "/name",
  "/agent",
  "/cron",
  "/every",
  "/timezone",
  "/jitter",
  "/starts_at",
  "/ends_at",
  "/misfire",
  TEXT,
  CONVERSATION,
];

interface ScheduleFormProps {
  stored: Stored<ScheduleSpec>;
  label: string;
  save: (spec: ScheduleSpec, version: number) => Promise<Stored<ScheduleSpec>>;
}

export function ScheduleForm({ stored, label, save }: ScheduleFormProps) {
  return (
    <SpecForm stored={stored} pointers={POINTERS} label={label} save={save}>
      {(fields) => (
        <>
          <RuleFields {...fields} />
          <EventFields {...fields} />
        </>
      )}
    </SpecForm>
  );
}

/** Name, agent, and when it is due. */
function RuleFields({ spec, change, faultsAt }: SpecFields<ScheduleSpec>) {
  const t = useText();
  const agents = useQuery(agentsQuery()).data;
  const text = (name: "cron" | "every" | "timezone" | "jitter", label: string, placeholder: string) => (
    <TextField
      label={label}
      placeholder={placeholder}
      value={spec[name]}
      set={(value) => change({ [name]: value === "" ? undefined : value })}
      faults={faultsAt(`/${name}`)}
    />
  );
  const time = (name: "starts_at" | "ends_at", label: string) => (
    <TextField
      label={label}
      type="datetime-local"
      value={localTime(`${spec[name] ?? ""}`)}
      set={(value) => change({ [name]: value === "" ? undefined : Number(secondsOf(value)) })}
      faults={faultsAt(`/${name}`)}
    />
  );
  return (
    <div className="columns">
      <TextField
        label={t("agents.name")}
        required
        value={spec.name}
        set={(name) => change({ name })}
        faults={faultsAt("/name")}
      />
      <Field label={t("run.agent")} faults={faultsAt("/agent")}>
        {({ id, ...marks }) => (
          <NameSelect
            id={id}
            marks={marks}
            value={spec.agent ?? ""}
            set={(agent) => change({ agent: agent === "" ? undefined : agent })}
            // A longer list is not read to its end: a name without an option may exist.
            options={agents?.has_more ? undefined : agents?.items.map(({ name }) => ({ name, note: "" }))}
          />
        )}
      </Field>
      {text("cron", t("schedules.cron"), "0 2 * * *")}
      {text("timezone", t("schedules.timezone"), "UTC")}
      {text("every", t("schedules.every"), "15m")}
      {text("jitter", t("schedules.jitter"), "5m")}
      {time("starts_at", t("schedules.startsAt"))}
      {time("ends_at", t("schedules.endsAt"))}
      <SelectField
        label={t("schedules.misfire")}
        value={spec.misfire ?? "once"}
        options={(["skip", "once", "all"] as const).map((value) => ({ value, label: t(MISFIRES[value]) }))}
        set={(misfire) => change({ misfire })}
        faults={faultsAt("/misfire")}
      />
      <CheckField
        label={t("agents.enabled")}
        value={spec.enabled !== false}
        set={(enabled) => change({ enabled })}
      />
    </div>
  );
}

/** Text and conversation of the events. Other members are kept. */
function EventFields({ spec, change, faultsAt }: SpecFields<ScheduleSpec>) {
  const t = useText();
  const { event } = spec;
  return (
    <>
      <div className="columns">
        <TextField
          label={t("run.conversation")}
          value={event?.conversation?.conversation_id}
          set={(id) => change({ event: withConversation(event, id) })}
          faults={faultsAt(CONVERSATION)}
        />
      </div>
      <Field label={t("try.text")} faults={faultsAt(TEXT)}>
        {(marks) => (
          <textarea
            {...marks}
            rows={3}
            value={event?.input?.text ?? ""}
            onChange={(typed) => change({ event: withText(event, typed.target.value) })}
          />
        )}
      </Field>
      {event != null && (
        <details>
          <summary>{t("try.json")}</summary>
          <Json value={event} />
        </details>
      )}
    </>
  );
}
