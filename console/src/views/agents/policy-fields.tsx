import type { FieldFault } from "../../api/errors";
import { useText } from "../../i18n";
import { isUnrequested, type OfferedNames, policyNames, RESOURCES } from "../../lib/catalogue";
import { faultsAt } from "../../lib/field-faults";
import { toggled } from "../../lib/names";
import { rulesIn, rulesOf } from "../../lib/tool-rules";
import { Field, FieldFaults } from "../../ui/field-faults";
import { Picker } from "../../ui/picker";
import type { AgentSpec } from "./queries";
import { ToolRuleFields } from "./tool-rules";

interface PolicyProps {
  spec: AgentSpec;
  /** Faults that the gateway found, with pointers into the agent. */
  faults: FieldFault[];
  change: (fields: Partial<AgentSpec>) => void;
}

interface ResourceProps extends PolicyProps {
  offered: OfferedNames;
  /** Manifest of the runner, if it is registered. */
  manifest: unknown;
}

type Policy = NonNullable<AgentSpec["resource_policy"]>;

/** Resources that runs of the agent may use. */
export function ResourceFields({ spec, faults, change, offered, manifest }: ResourceProps) {
  const t = useText();
  const set = (fields: Partial<Policy>) =>
    change({ resource_policy: { ...spec.resource_policy, ...fields } });
  const tools = spec.resource_policy?.tools;
  const rules = rulesIn(tools);
  return (
    <div className="pickers">
      {RESOURCES.map((kind) => {
        const common = {
          options: offered[kind],
          faults: faultsAt(faults, `/resource_policy/${kind}`),
          hint: isUnrequested(manifest, kind) ? t("policy.unrequested") : undefined,
        };
        return kind === "tools" && rules !== null ? (
          <ToolRuleFields key={kind} {...common} rules={rules} set={(next) => set({ tools: next })} />
        ) : (
          <div key={kind}>
            <Picker
              label={t(`policy.${kind}`)}
              hasAll
              chosen={policyNames(spec, kind)}
              set={(names) => set({ [kind]: names })}
              {...common}
            />
            {kind === "tools" && (
              <button type="button" className="quiet" onClick={() => set({ tools: rulesOf(tools) })}>
                {t("toolRule.start")}
              </button>
            )}
          </div>
        );
      })}
    </div>
  );
}

/** Operations of each kind, as `resource_policy` names them. */
const OPERATIONS = {
  history: ["page", "search", "workspace"],
  events: ["get", "page"],
  artifacts: ["metadata", "read", "create"],
  storage: ["plugin", "workspace", "binding"],
} as const;
const OPERATION_KINDS = Object.keys(OPERATIONS) as (keyof typeof OPERATIONS)[];
const STATE_SCOPES = ["conversation", "actor", "subject", "runner", "binding"] as const;
const DEFAULT_SCOPES = ["conversation", "actor"] as const;

/** Operations on the conversation, files and state. */
export function PermissionFields({ spec, faults, change }: PolicyProps) {
  const t = useText();
  const policy = spec.resource_policy ?? {};
  const set = (fields: Partial<Policy>) => change({ resource_policy: { ...policy, ...fields } });
  const state = spec.state_policy ?? {};
  const delivery = spec.delivery_policy ?? {};
  return (
    <div className="pickers">
      {OPERATION_KINDS.map((kind) => (
        <CheckGroup
          key={kind}
          label={t(`policy.${kind}`)}
          names={OPERATIONS[kind]}
          chosen={policy[kind] ?? []}
          set={(names) => set({ [kind]: names })}
          faults={faultsAt(faults, `/resource_policy/${kind}`)}
        />
      ))}
      <CheckGroup
        label={t("policy.state")}
        names={STATE_SCOPES}
        chosen={state.enabled === false ? [] : (state.scopes ?? [...DEFAULT_SCOPES])}
        set={(scopes) =>
          change({ state_policy: { enabled: scopes.length > 0, scopes: scopes as typeof state.scopes } })
        }
        faults={faultsAt(faults, "/state_policy")}
      />
      <CheckGroup
        label={t("policy.delivery")}
        names={["interactions"]}
        chosen={delivery.interactions ? ["interactions"] : []}
        set={(names) => change({ delivery_policy: { ...delivery, interactions: names.length > 0 } })}
        faults={faultsAt(faults, "/delivery_policy")}
      />
      <Picker
        label={t("policy.history_conversations")}
        chosen={policy.history_conversations ?? []}
        set={(names) => set({ history_conversations: names === "*" ? [] : names })}
        options={undefined}
        faults={faultsAt(faults, "/resource_policy/history_conversations")}
      />
    </div>
  );
}

interface CheckGroupProps {
  label: string;
  names: readonly string[];
  chosen: readonly string[];
  set: (names: string[]) => void;
  faults: FieldFault[];
}

function CheckGroup({ label, names, chosen, set, faults }: CheckGroupProps) {
  return (
    <fieldset className="picker">
      <legend>{label}</legend>
      <div className="quick">
        {names.map((name) => (
          <label key={name}>
            <input
              type="checkbox"
              checked={chosen.includes(name)}
              onChange={() => set(toggled([...chosen], name))}
            />{" "}
            {name}
          </label>
        ))}
      </div>
      <FieldFaults faults={faults} isNamed />
    </fieldset>
  );
}

const SCOPES = ["global", "workspace", "bot", "conversation"] as const;
const FILTERS = ["source", "bot_id", "actor_id", "pipeline_id"] as const;

/** Events that the agent handles. */
export function ScopeFields({ spec, faults, change }: PolicyProps) {
  const t = useText();
  const scope = spec.scope ?? {};
  const kind = scope.kind ?? "workspace";
  const filters = spec.filters ?? {};
  const needs = {
    bot_id: kind === "bot" || kind === "conversation",
    conversation_id: kind === "conversation",
  };
  return (
    <>
      <div className="columns">
        <Field label={t("policy.scope")} faults={faultsAt(faults, "/scope/kind")}>
          {(marks) => (
            <select
              {...marks}
              value={kind}
              // The ids of another kind of scope are refused.
              onChange={(event) => change({ scope: { kind: event.target.value as typeof kind } })}
            >
              {SCOPES.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          )}
        </Field>
        {(["bot_id", "conversation_id"] as const).map(
          (name) =>
            needs[name] && (
              <Field key={name} label={t(`filter.${name}`)} faults={faultsAt(faults, `/scope/${name}`)}>
                {(marks) => (
                  <input
                    {...marks}
                    value={scope[name] ?? ""}
                    onChange={(event) =>
                      change({ scope: { ...scope, kind, [name]: event.target.value || undefined } })
                    }
                  />
                )}
              </Field>
            ),
        )}
      </div>
      <div className="pickers">
        {FILTERS.map((name) => (
          <Picker
            key={name}
            label={t(`policy.filter.${name}`)}
            chosen={filters[name] ?? []}
            set={(names) =>
              change({
                filters: { ...filters, [name]: names === "*" || names.length === 0 ? undefined : names },
              })
            }
            options={undefined}
            faults={faultsAt(faults, `/filters/${name}`)}
          />
        ))}
      </div>
    </>
  );
}

const CONCURRENCY = ["concurrent", "reject", "enqueue", "interrupt", "steer"] as const;
const MAX_RETRIES = 5;
const DEFAULT_RETRIES = 2;

/** Limits and defaults of the agent's runs. */
export function LimitFields({ spec, faults, change }: PolicyProps) {
  const t = useText();
  const text = (name: "locale" | "timezone", placeholder: string) => (
    <Field label={t(`policy.${name}`)} faults={faultsAt(faults, `/${name}`)}>
      {(marks) => (
        <input
          {...marks}
          placeholder={placeholder}
          value={spec[name] ?? ""}
          onChange={(event) => change({ [name]: event.target.value || undefined })}
        />
      )}
    </Field>
  );
  return (
    <div className="columns">
      <Field label={t("policy.concurrency")} faults={faultsAt(faults, "/concurrency")}>
        {(marks) => (
          <select
            {...marks}
            value={spec.concurrency ?? "concurrent"}
            onChange={(event) => change({ concurrency: event.target.value as AgentSpec["concurrency"] })}
          >
            {CONCURRENCY.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        )}
      </Field>
      <Field label={t("policy.retries")} faults={faultsAt(faults, "/retry")}>
        {(marks) => (
          <input
            {...marks}
            type="number"
            min={0}
            max={MAX_RETRIES}
            value={spec.retry?.max ?? DEFAULT_RETRIES}
            onChange={(event) =>
              change({ retry: { ...spec.retry, max: Math.trunc(event.target.valueAsNumber) || 0 } })
            }
          />
        )}
      </Field>
      <Field label={t("policy.idle")} faults={faultsAt(faults, "/conversation_idle_seconds")}>
        {(marks) => (
          <input
            {...marks}
            type="number"
            min={1}
            value={spec.conversation_idle_seconds ?? ""}
            onChange={(event) => {
              const seconds = Math.trunc(event.target.valueAsNumber);
              change({ conversation_idle_seconds: Number.isNaN(seconds) ? undefined : seconds });
            }}
          />
        )}
      </Field>
      {text("locale", "en_US")}
      {text("timezone", "Europe/Berlin")}
    </div>
  );
}

/** Pointers of the fields above. */
export const POLICY = [
  "/scope",
  "/filters",
  "/concurrency",
  "/retry",
  "/conversation_idle_seconds",
  "/locale",
  "/timezone",
  "/state_policy",
  "/delivery_policy",
  ...[...RESOURCES, ...OPERATION_KINDS, "history_conversations"].map((kind) => `/resource_policy/${kind}`),
];
