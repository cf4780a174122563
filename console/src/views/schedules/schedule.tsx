import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams } from "@tanstack/react-router";
import { api, dataOf } from "../../api/client";
import { useRights } from "../../api/rights";
import { useLanguage, useText } from "../../i18n";
import { absolute } from "../../lib/format";
import { MISFIRES, ruleOf, scheduleSpec, scheduleState } from "../../lib/schedules";
import { ConfirmButton } from "../../ui/confirm";
import { ObjectChanges } from "../../ui/object-changes";
import { Badge, type Fact, Facts, Json, Loading } from "../../ui/parts";
import { PrincipalName } from "../../ui/principal";
import { Problem } from "../../ui/problem";
import type { Stored } from "../../ui/spec-form";
import { When } from "../../ui/when";
import { ScheduleForm } from "./form";
import { Occurrences } from "./occurrences";
import { type Schedule, type ScheduleSpec, scheduleQuery } from "./queries";

const NEW: Stored<ScheduleSpec> = { spec: { name: "", misfire: "once", enabled: true }, version: 0 };

export function SchedulePage() {
  const t = useText();
  const client = useQueryClient();
  const navigate = useNavigate();
  const rights = useRights();
  const { scheduleId } = useParams({ from: "/schedules/$scheduleId" });
  const create = async (body: ScheduleSpec) => {
    const { id } = await dataOf(api.POST("/v1/schedules", { body }));
    await client.invalidateQueries({ queryKey: ["schedules"] });
    await navigate({ to: "/schedules/$scheduleId", params: { scheduleId: id }, ignoreBlocker: true });
    return NEW;
  };
  return (
    <main>
      {scheduleId === "new" ? (
        <>
          <h1>{t("schedules.new")}</h1>
          {rights?.changes && <ScheduleForm stored={NEW} label={t("schedules.create")} save={create} />}
          {rights?.changes === false && <p className="faint">{t("rights.readOnly")}</p>}
        </>
      ) : (
        <StoredSchedule key={scheduleId} scheduleId={scheduleId} />
      )}
    </main>
  );
}

function StoredSchedule({ scheduleId }: { scheduleId: string }) {
  const t = useText();
  const rights = useRights();
  const found = useQuery(scheduleQuery(scheduleId));
  const schedule = found.data;
  const isEditable = schedule?.origin === "api" && rights?.changes === true;
  return (
    <>
      {found.isPending && <Loading what="nav.schedules" />}
      {found.error !== null && <Problem error={found.error} retry={() => void found.refetch()} />}
      <h1>{schedule?.name ?? t("nav.schedules")}</h1>
      {schedule !== undefined && <ScheduleFacts schedule={schedule} />}
      {schedule !== undefined && rights?.changes && (
        <div className="actions">
          <ScheduleActs schedule={schedule} />
          {isEditable && <DeleteSchedule schedule={schedule} />}
        </div>
      )}
      {schedule !== undefined && schedule.origin !== "api" && (
        <p className="faint">{t("schedules.readOnly")}</p>
      )}
      {schedule !== undefined && isEditable && <EditSchedule schedule={schedule} />}
      {schedule !== undefined && !isEditable && schedule.event != null && <Json value={schedule.event} />}
      {schedule !== undefined && <Occurrences scheduleId={scheduleId} />}
    </>
  );
}

function ScheduleFacts({ schedule }: { schedule: Schedule }) {
  const t = useText();
  const state = scheduleState(schedule);
  const time = (label: string, at: number | null | undefined): Fact => ({
    label,
    value: at == null ? null : <When at={at} />,
  });
  return (
    <Facts
      facts={[
        { label: t("run.status"), value: <Badge tone={state.tone}>{t(state.text)}</Badge> },
        { label: t("schedules.rule"), value: ruleOf(schedule) },
        { label: t("run.agent"), value: <AgentOf schedule={schedule} /> },
        time(t("schedules.paused"), schedule.paused_at),
        { label: t("schedules.next"), value: <DueTimes schedule={schedule} /> },
        { label: t("schedules.jitter"), value: schedule.jitter },
        time(t("schedules.startsAt"), schedule.starts_at),
        time(t("schedules.endsAt"), schedule.ends_at),
        { label: t("schedules.misfire"), value: t(MISFIRES[schedule.misfire ?? "once"]) },
        { label: t("endpoints.origin"), value: schedule.origin },
        {
          label: t("agents.updated"),
          value: (
            <>
              <When at={schedule.updated_at} /> · <PrincipalName principal={schedule.updated_by} /> ·{" "}
              <ObjectChanges kind="schedule" id={schedule.id} />
            </>
          ),
        },
      ]}
    />
  );
}

function AgentOf({ schedule: { agent, agent_id } }: { schedule: Schedule }) {
  if (agent_id == null) return <>{agent ?? "–"}</>;
  return (
    <Link to="/agents/$agentId" params={{ agentId: agent_id }}>
      {agent ?? agent_id}
    </Link>
  );
}

/** The next due times in the time zone of the reader. */
function DueTimes({ schedule }: { schedule: Schedule }) {
  const language = useLanguage();
  if (schedule.next_due.length === 0) return <>–</>;
  return (
    <ul className="plain">
      {schedule.next_due.map((at) => (
        <li key={at}>{absolute(at, language)}</li>
      ))}
    </ul>
  );
}

/** Runs the schedule now, and pauses or resumes it. */
function ScheduleActs({ schedule }: { schedule: Schedule }) {
  const t = useText();
  const client = useQueryClient();
  const params = { path: { schedule_id: schedule.id } };
  const onSuccess = () => client.invalidateQueries({ queryKey: ["schedules"] });
  const run = useMutation({
    mutationFn: () => dataOf(api.POST("/v1/schedules/{schedule_id}/run", { params })),
    onSuccess,
  });
  const isPaused = schedule.paused_at != null;
  const pause = useMutation({
    mutationFn: () =>
      isPaused
        ? dataOf(api.POST("/v1/schedules/{schedule_id}/resume", { params }))
        : dataOf(api.POST("/v1/schedules/{schedule_id}/pause", { params })),
    onSuccess,
  });
  return (
    <>
      <button type="button" disabled={run.isPending} onClick={() => run.mutate()}>
        {t("schedules.run")}
      </button>
      <button type="button" disabled={pause.isPending} onClick={() => pause.mutate()}>
        {t(isPaused ? "schedules.resume" : "schedules.pause")}
      </button>
      {run.error !== null && <Problem error={run.error} />}
      {pause.error !== null && <Problem error={pause.error} />}
    </>
  );
}

function EditSchedule({ schedule }: { schedule: Schedule }) {
  const t = useText();
  const client = useQueryClient();
  const storedOf = (saved: Schedule) => ({ spec: scheduleSpec(saved), version: saved.version });
  const save = async (body: ScheduleSpec, version: number) => {
    const params = { path: { schedule_id: schedule.id }, header: { "If-Match": version } };
    const saved = await dataOf(api.PUT("/v1/schedules/{schedule_id}", { params, body }));
    await client.invalidateQueries({ queryKey: ["schedules"] });
    return storedOf(saved);
  };
  return <ScheduleForm stored={storedOf(schedule)} label={t("agents.save")} save={save} />;
}

function DeleteSchedule({ schedule }: { schedule: Schedule }) {
  const t = useText();
  const client = useQueryClient();
  const navigate = useNavigate();
  const remove = async () => {
    const params = { path: { schedule_id: schedule.id }, header: { "If-Match": schedule.version } };
    await dataOf(api.DELETE("/v1/schedules/{schedule_id}", { params }));
    await navigate({ to: "/schedules", ignoreBlocker: true });
    client.removeQueries({ queryKey: scheduleQuery(schedule.id).queryKey });
    await client.invalidateQueries({ queryKey: ["schedules"] });
  };
  return (
    <ConfirmButton
      label={t("agents.delete")}
      title={t("agents.deleteTitle", { name: schedule.name })}
      effect={t("schedules.deleteEffect")}
      confirm={t("schedules.deleteConfirm")}
      act={remove}
    />
  );
}
