import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { type FormEvent, useRef, useState } from "react";
import { api, dataOf } from "../../api/client";
import { faultsOf, record } from "../../api/errors";
import { useLanguage, useText } from "../../i18n";
import { configItems, missingItems } from "../../lib/config-form";
import { faultsAt, faultsElsewhere, pointerTo, type Refusal, standingFaults } from "../../lib/field-faults";
import { canonical } from "../../lib/format";
import { FieldFaults } from "../../ui/field-faults";
import { Problem } from "../../ui/problem";
import { ConfigFields } from "./config-fields";
import { GENERAL, GeneralFields } from "./general-fields";
import { JsonField } from "./json-field";
import { type Agent, type AgentSpec, runnersQuery } from "./queries";
import { DeleteAgent, SaveDialog } from "./save";

/** Form of an agent. `stored` is null for a new one. */
export function AgentEditor({ spec: initial, stored }: { spec: AgentSpec; stored: Agent | null }) {
  const t = useText();
  const language = useLanguage();
  const [spec, setSpec] = useState(initial);
  const [faults, setFaults] = useState<ReadonlySet<string>>(new Set());
  const [refusal, setRefusal] = useState<Refusal | null>(null);
  const [isSaving, setSaving] = useState(false);
  const form = useRef<HTMLFormElement>(null);
  const runners = useQuery(runnersQuery());
  const runner = runners.data?.items.find((each) => each.id === spec.runner_id);
  const items = configItems(runner?.manifest, language);
  const refused = standingFaults(refusal, spec);
  const configFaults = faultsAt(refused, "/config");
  const missing = missingItems(items, record(spec.config));
  const change = (fields: Partial<AgentSpec>) => setSpec((before) => ({ ...before, ...fields }));
  const setFault = (name: string, fault: string | null) =>
    setFaults((before) => {
      const next = new Set(before);
      if (fault === null) next.delete(name);
      else next.add(name);
      return next;
    });
  const { name, description, enabled, priority, event_types, runner_id, config, ...others } = spec;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setSaving(true);
  };
  const close = () => {
    setSaving(false);
    // After the dialog has given the focus back.
    requestAnimationFrame(() => form.current?.querySelector<HTMLElement>("[aria-invalid=true]")?.focus());
  };
  return (
    <form ref={form} onSubmit={submit}>
      <GeneralFields spec={spec} faults={refused} change={change} runners={runners.data?.items ?? []} />
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
            items={items}
            config={(config ?? {}) as Record<string, unknown>}
            faults={refused}
            change={(next) => change({ config: next })}
            setFault={setFault}
            missing={new Set(missing.map((item) => item.name))}
          />
        </>
      ) : (
        <JsonField
          label="config"
          value={config ?? {}}
          faults={configFaults}
          change={(next) => change({ config: next })}
          setFault={setFault}
        />
      )}
      <h2>{t("agents.policy")}</h2>
      <JsonField
        label={t("agents.policyFields")}
        value={others}
        faults={faultsElsewhere(refused, [...GENERAL, "/config"])}
        change={(next) =>
          setSpec({
            name,
            description,
            enabled,
            priority,
            event_types,
            runner_id,
            config,
            ...(next as object),
          })
        }
        setFault={setFault}
      />
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
      {faults.size > 0 && <p className="warning">{t("agents.faulty", { names: [...faults].join(", ") })}</p>}
      {isSaving && <Save spec={spec} initial={initial} stored={stored} close={close} refuse={setRefusal} />}
    </form>
  );
}

interface SaveProps {
  spec: AgentSpec;
  initial: AgentSpec;
  stored: Agent | null;
  close: () => void;
  refuse: (refusal: Refusal) => void;
}

function Save({ spec, initial, stored, close, refuse }: SaveProps) {
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
      await client.invalidateQueries({ queryKey: ["agents"] });
      close();
      await navigate({ to: "/agents/$agentId", params: { agentId: agent.id } });
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
      {save.error !== null && <Problem error={save.error} />}
    </SaveDialog>
  );
}
