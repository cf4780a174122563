import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { type FormEvent, type ReactNode, useEffect, useRef, useState } from "react";
import { api, dataOf } from "../../api/client";
import { type FieldFault, faultsOf, record } from "../../api/errors";
import { useLanguage, useText } from "../../i18n";
import { type OfferedNames, type UnknownNames, ungrantedIn, unknownIn } from "../../lib/catalogue";
import { type ConfigItem, configItems, missingItems } from "../../lib/config-form";
import { faultsAt, faultsElsewhere, pointerTo, type Refusal, standingFaults } from "../../lib/field-faults";
import { canonical } from "../../lib/format";
import { Boundary } from "../../ui/boundary";
import { FieldFaults } from "../../ui/field-faults";
import { LeaveGuard } from "../../ui/leave-guard";
import { Problem } from "../../ui/problem";
import { ConfigFields } from "./config-fields";
import { GENERAL, GeneralFields } from "./general-fields";
import { JsonField } from "./json-field";
import { useOffered } from "./offered";
import { LimitFields, PermissionFields, POLICY, ResourceFields, ScopeFields } from "./policy-fields";
import { type Agent, type AgentSpec, runnersQuery } from "./queries";
import { DeleteAgent, SaveDialog } from "./save";

interface EditorProps {
  spec: AgentSpec;
  /** Null for a new agent. */
  stored: Agent | null;
  /** Learns whether the form has changes that are not saved. */
  onChange: (isDirty: boolean) => void;
  onSaved: () => void;
}

/** Form of an agent, or its JSON. */
export function AgentEditor({ spec: initial, stored, onChange, onSaved }: EditorProps) {
  const t = useText();
  const language = useLanguage();
  const [spec, setSpec] = useState(initial);
  const [isJson, setJson] = useState(false);
  const [faults, setFaults] = useState<ReadonlySet<string>>(new Set());
  const [refusal, setRefusal] = useState<Refusal | null>(null);
  const [isSaving, setSaving] = useState(false);
  const form = useRef<HTMLFormElement>(null);
  const offered = useOffered(stored);
  const runners = useQuery(runnersQuery()).data?.items ?? [];
  const manifest = runners.find((each) => each.id === spec.runner_id)?.manifest;
  const items = configItems(manifest, language);
  const missing = missingItems(items, record(spec.config));
  const isDirty = faults.size > 0 || canonical(spec) !== canonical(initial);
  useEffect(() => onChange(isDirty), [isDirty, onChange]);
  const change = (fields: Partial<AgentSpec>) => {
    // The fields of another runner are others.
    if (fields.runner_id !== undefined) setFaults(new Set());
    setSpec((before) => ({ ...before, ...fields }));
  };
  const setFault = (name: string, fault: string | null) =>
    setFaults((before) => {
      const next = new Set(before);
      if (fault === null) next.delete(name);
      else next.add(name);
      return next;
    });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setSaving(true);
  };
  const close = () => {
    setSaving(false);
    // After the dialog has given the focus back.
    requestAnimationFrame(() => form.current?.querySelector<HTMLElement>("[aria-invalid=true]")?.focus());
  };
  const refused = standingFaults(refusal, spec);
  return (
    <form ref={form} onSubmit={submit}>
      <LeaveGuard isDirty={isDirty} />
      <ModeChoice isJson={isJson} choose={setJson} isBlocked={faults.size > 0} />
      {isJson ? (
        <JsonField
          label={t("agents.json")}
          value={spec}
          faults={refused}
          change={(next) => setSpec(next as AgentSpec)}
          setFault={setFault}
        />
      ) : (
        // JSON may have values that no field can show.
        <Boundary>
          <AgentFields
            {...{ spec, change, offered, manifest, items, setFault }}
            faults={refused}
            general={<GeneralFields spec={spec} faults={refused} change={change} runners={runners} />}
            missing={new Set(missing.map((item) => item.name))}
          />
        </Boundary>
      )}
      <div className="actions">
        <button type="submit" className="primary" disabled={faults.size > 0 || missing.length > 0}>
          {t("agents.review")}
        </button>
        {stored !== null && <DeleteAgent agent={stored} />}
      </div>
      {missing.length > 0 && (
        <p className="warning">
          {t("agents.missing", { names: missing.map((item) => item.label).join(", ") })}
        </p>
      )}
      <NameWarnings found={ungrantedIn(spec, items)} text="agents.ungranted" />
      {faults.size > 0 && <p className="warning">{t("agents.faulty", { names: [...faults].join(", ") })}</p>}
      {isSaving && (
        <Save
          {...{ spec, initial, stored, close, onSaved }}
          refuse={setRefusal}
          unknown={unknownIn(spec, items, offered)}
          ungranted={ungrantedIn(spec, items)}
        />
      )}
    </form>
  );
}

interface ModeProps {
  isJson: boolean;
  choose: (isJson: boolean) => void;
  /** True while a field has text that is no value: the other form would lose it. */
  isBlocked: boolean;
}

function ModeChoice({ isJson, choose, isBlocked }: ModeProps) {
  const t = useText();
  return (
    <div className="quick">
      <button
        type="button"
        aria-pressed={!isJson}
        disabled={isBlocked && isJson}
        onClick={() => choose(false)}
      >
        {t("try.form")}
      </button>
      <button
        type="button"
        aria-pressed={isJson}
        disabled={isBlocked && !isJson}
        onClick={() => choose(true)}
      >
        JSON
      </button>
    </div>
  );
}

interface FieldsProps {
  spec: AgentSpec;
  change: (fields: Partial<AgentSpec>) => void;
  offered: OfferedNames;
  manifest: unknown;
  items: ConfigItem[];
  faults: FieldFault[];
  setFault: (name: string, fault: string | null) => void;
  general: ReactNode;
  missing: ReadonlySet<string>;
}

function AgentFields({ general, items, missing, setFault, ...props }: FieldsProps) {
  const t = useText();
  const { spec, change, offered, manifest, faults } = props;
  const configFaults = faultsAt(faults, "/config");
  const policy = { spec, change, faults };
  return (
    <>
      <FieldFaults faults={faultsElsewhere(faults, [...GENERAL, ...POLICY, "/config"])} isNamed />
      {general}
      <h2>{t("agents.config")}</h2>
      {items.length > 0 ? (
        <>
          <FieldFaults
            faults={faultsElsewhere(
              configFaults,
              items.map((item) => pointerTo("config", item.name)),
            )}
            isNamed
          />
          <ConfigFields
            key={spec.runner_id}
            items={items}
            config={record(spec.config)}
            faults={faults}
            change={(config) => change({ config })}
            setFault={setFault}
            missing={missing}
            offered={offered}
          />
        </>
      ) : (
        <JsonField
          label="config"
          value={spec.config ?? {}}
          faults={configFaults}
          change={(config) => change({ config })}
          setFault={setFault}
        />
      )}
      <h2>{t("agents.resources")}</h2>
      <ResourceFields {...policy} offered={offered} manifest={manifest} />
      <h2>{t("agents.permissions")}</h2>
      <PermissionFields {...policy} />
      <h2>{t("agents.events")}</h2>
      <ScopeFields {...policy} />
      <h2>{t("agents.limits")}</h2>
      <LimitFields {...policy} />
    </>
  );
}

interface SaveProps {
  spec: AgentSpec;
  initial: AgentSpec;
  stored: Agent | null;
  close: () => void;
  refuse: (refusal: Refusal) => void;
  unknown: UnknownNames[];
  ungranted: UnknownNames[];
  onSaved: () => void;
}

function Save({ spec, initial, stored, close, refuse, unknown, ungranted, onSaved }: SaveProps) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const save = useMutation({
    mutationFn: () => {
      if (stored === null) return dataOf(api.POST("/v1/agents", { body: spec }));
      // An edit of another version fails instead of undoing it.
      const params = { path: { agent_id: stored.id }, header: { "If-Match": stored.version } };
      return dataOf(api.PUT("/v1/agents/{agent_id}", { params, body: spec }));
    },
    onError: (error) => refuse({ sent: spec, faults: faultsOf(error) }),
    onSuccess: async (agent) => {
      onSaved();
      await client.invalidateQueries({ queryKey: ["agents"] });
      close();
      await navigate({ to: "/agents/$agentId", params: { agentId: agent.id }, ignoreBlocker: true });
    },
  });
  return (
    <SaveDialog
      before={stored === null ? "" : canonical(initial)}
      after={canonical(spec)}
      isSaving={save.isPending}
      save={() => save.mutate()}
      close={close}
    >
      <NameWarnings found={unknown} text="agents.unknown" />
      <NameWarnings found={ungranted} text="agents.ungranted" />
      {save.error !== null && <Problem error={save.error} />}
    </SaveDialog>
  );
}

interface WarningProps {
  found: UnknownNames[];
  text: "agents.unknown" | "agents.ungranted";
}

function NameWarnings({ found, text }: WarningProps) {
  const t = useText();
  return found.map(({ pointer, names }) => (
    <p className="warning" key={pointer}>
      <code>{pointer}</code> {t(text, { names: names.join(", ") })}
    </p>
  ));
}
