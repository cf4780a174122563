import { useQuery } from "@tanstack/react-query";
import { agentsQuery } from "../../api/queries";
import { useText } from "../../i18n";
import { toggled } from "../../lib/names";
import { MESSAGE_TYPES } from "../../lib/webhooks";
import { FieldFaults } from "../../ui/field-faults";
import { Picker } from "../../ui/picker";
import { CheckField, SelectField, SpecForm, type Stored, TextField } from "../../ui/spec-form";
import type { WebhookSpec } from "./queries";

const POINTERS = ["/name", "/url", "/secret", "/payload", "/events", "/agents"];

interface WebhookFormProps {
  stored: Stored<WebhookSpec>;
  /** Another secret needs a rotation. */
  isNew?: boolean;
  save: (spec: WebhookSpec, version: number) => Promise<Stored<WebhookSpec>>;
}

export function WebhookForm({ stored, isNew, save }: WebhookFormProps) {
  const t = useText();
  const agents = useQuery(agentsQuery()).data;
  return (
    <SpecForm
      stored={stored}
      pointers={POINTERS}
      label={t(isNew ? "webhooks.create" : "agents.save")}
      save={save}
    >
      {({ spec, change, faultsAt }) => (
        <>
          <div className="columns">
            <TextField
              label={t("agents.name")}
              required
              value={spec.name}
              set={(name) => change({ name })}
              faults={faultsAt("/name")}
            />
            <TextField
              label={t("webhooks.url")}
              type="url"
              value={spec.url}
              set={(url) => change({ url: url === "" ? undefined : url })}
              faults={faultsAt("/url")}
            />
            {isNew && (
              <TextField
                label={t("endpoints.secret")}
                type="password"
                value={spec.secret}
                set={(secret) => change({ secret: secret === "" ? undefined : secret })}
                faults={faultsAt("/secret")}
              />
            )}
            <SelectField
              label={t("webhooks.payload")}
              value={spec.payload ?? "thin"}
              options={[
                { value: "thin", label: t("webhooks.thin") },
                { value: "full", label: t("webhooks.full") },
              ]}
              set={(payload) => change({ payload })}
              faults={faultsAt("/payload")}
            />
            <CheckField
              label={t("agents.enabled")}
              value={spec.enabled !== false}
              set={(enabled) => change({ enabled })}
            />
          </div>
          <div className="pickers">
            <fieldset className="picker">
              <legend>{t("webhooks.events")}</legend>
              <div className="options">
                {MESSAGE_TYPES.map((type) => (
                  <label key={type}>
                    <input
                      type="checkbox"
                      checked={spec.events.includes(type)}
                      onChange={() => change({ events: toggled(spec.events, type) as WebhookSpec["events"] })}
                    />
                    <span>{type}</span>
                  </label>
                ))}
              </div>
              <FieldFaults faults={faultsAt("/events")} isNamed />
            </fieldset>
            <Picker
              label={t("nav.agents")}
              chosen={spec.agents ?? "*"}
              set={(names) => change({ agents: names === "*" ? undefined : names })}
              // A longer list is not read to its end: a name without an option may exist.
              options={agents?.has_more ? undefined : agents?.items.map(({ name }) => ({ name, note: "" }))}
              hasAll
              hint={t("webhooks.agentsHint")}
              faults={faultsAt("/agents")}
            />
          </div>
        </>
      )}
    </SpecForm>
  );
}
