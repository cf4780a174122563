import { useQuery } from "@tanstack/react-query";
import { agentsQuery } from "../../api/queries";
import { useText } from "../../i18n";
import { generatesSecret, SCHEMES, withScheme } from "../../lib/sources";
import { Field } from "../../ui/field-faults";
import { Picker } from "../../ui/picker";
import { SelectField, type SpecFields, SpecForm, type Stored, TextField } from "../../ui/spec-form";
import type { SourceSpec } from "./queries";

const POINTERS = [
  "/name",
  "/scheme",
  "/secret",
  "/header",
  "/prefix",
  "/encoding",
  "/filter",
  "/dedupe",
  "/agents",
];

const NEW: Stored<SourceSpec> = {
  spec: {
    name: "",
    scheme: "standard_webhooks",
    filter: `{event_type: "message.received", input: {text: .body.text}}`,
  },
  version: 0,
};

/** Form of a new source. The API changes only the secret of a stored one. */
export function SourceForm({ create }: { create: (spec: SourceSpec) => Promise<void> }) {
  const t = useText();
  const save = async (spec: SourceSpec) => {
    await create(spec);
    return NEW;
  };
  return (
    <SpecForm stored={NEW} pointers={POINTERS} label={t("sources.create")} save={save}>
      {(fields) => (
        <>
          <SchemeFields {...fields} />
          <FilterFields {...fields} />
        </>
      )}
    </SpecForm>
  );
}

function SchemeFields({ spec, change, faultsAt }: SpecFields<SourceSpec>) {
  const t = useText();
  return (
    <div className="columns">
      <TextField
        label={t("agents.name")}
        required
        value={spec.name}
        set={(name) => change({ name })}
        faults={faultsAt("/name")}
      />
      <SelectField
        label={t("sources.scheme")}
        value={spec.scheme}
        options={SCHEMES.map((value) => ({ value, label: value }))}
        set={(scheme) => change(withScheme(spec, scheme))}
        faults={faultsAt("/scheme")}
      />
      <TextField
        label={t(generatesSecret(spec.scheme) ? "endpoints.secret" : "sources.secret")}
        type="password"
        required={!generatesSecret(spec.scheme)}
        value={spec.secret}
        set={(secret) => change({ secret: secret === "" ? undefined : secret })}
        faults={faultsAt("/secret")}
      />
      {spec.scheme === "hmac" && (
        <>
          <TextField
            label={t("sources.header")}
            required
            value={spec.header}
            set={(header) => change({ header: header === "" ? undefined : header })}
            faults={faultsAt("/header")}
          />
          <TextField
            label={t("sources.prefix")}
            placeholder="sha256="
            value={spec.prefix}
            set={(prefix) => change({ prefix: prefix === "" ? undefined : prefix })}
            faults={faultsAt("/prefix")}
          />
          <SelectField
            label={t("sources.encoding")}
            value={spec.encoding ?? "hex"}
            options={(["hex", "base64"] as const).map((value) => ({ value, label: value }))}
            set={(encoding) => change({ encoding })}
            faults={faultsAt("/encoding")}
          />
        </>
      )}
    </div>
  );
}

function FilterFields({ spec, change, faultsAt }: SpecFields<SourceSpec>) {
  const t = useText();
  const agents = useQuery(agentsQuery()).data;
  return (
    <>
      <Field label={t("sources.filter")} faults={faultsAt("/filter")}>
        {(marks) => (
          <textarea
            {...marks}
            required
            rows={6}
            spellCheck={false}
            value={spec.filter}
            onChange={(event) => change({ filter: event.target.value })}
          />
        )}
      </Field>
      <div className="columns">
        <TextField
          label={t("sources.dedupe")}
          value={spec.dedupe}
          set={(dedupe) => change({ dedupe: dedupe === "" ? undefined : dedupe })}
          faults={faultsAt("/dedupe")}
        />
      </div>
      <Picker
        label={t("nav.agents")}
        chosen={spec.agents ?? "*"}
        set={(names) => change({ agents: names === "*" ? undefined : names })}
        // A longer list is not read to its end: a name without an option may exist.
        options={agents?.has_more ? undefined : agents?.items.map(({ name }) => ({ name, note: "" }))}
        hasAll
        faults={faultsAt("/agents")}
      />
    </>
  );
}
