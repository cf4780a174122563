import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { api, dataOf } from "../../api/client";
import { ApiError } from "../../api/errors";
import { agentsQuery } from "../../api/queries";
import { useText } from "../../i18n";
import { type ApprovalDraft, approvalOf } from "../../lib/approvals";
import { localTime, secondsOf } from "../../lib/filters";
import { Field } from "../../ui/field-faults";
import { NameSelect } from "../../ui/picker";
import { RulesField } from "../../ui/rules";
import { type SpecFields, SpecForm, type Stored, TextField } from "../../ui/spec-form";

const POINTERS = ["/tool", "/agent", "/run_id", "/count", "/expires_at", "/arguments"];
const EXAMPLE = '{"/path": {"prefix": "/srv/shop/"}, "/text": {"any": true}}';
const NEW: Stored<ApprovalDraft> = { spec: { tool: "", arguments: "{}" }, version: 0 };

/** Creates an approval and opens it. */
export function ApprovalForm() {
  const t = useText();
  const client = useQueryClient();
  const navigate = useNavigate();
  const create = async (draft: ApprovalDraft) => {
    const made = approvalOf(draft);
    if (made === null) {
      throw new ApiError(400, "invalid", t("approvals.notRules"), false, { pointer: "/arguments" });
    }
    // The parsed rules would lose how their numbers are written.
    const request = { body: made.spec, bodySerializer: () => made.body };
    const { id } = await dataOf(api.POST("/v1/approvals", request));
    await client.invalidateQueries({ queryKey: ["approvals"] });
    await navigate({ to: "/approvals/$approvalId", params: { approvalId: id }, ignoreBlocker: true });
    return NEW;
  };
  return (
    <SpecForm stored={NEW} pointers={POINTERS} label={t("approvals.create")} save={create}>
      {(fields) => <DraftFields {...fields} />}
    </SpecForm>
  );
}

function DraftFields({ spec, change, faultsAt }: SpecFields<ApprovalDraft>) {
  const t = useText();
  const agents = useQuery(agentsQuery()).data;
  return (
    <>
      <div className="columns">
        <TextField
          label={t("approvals.toolPattern")}
          placeholder="fs_*"
          required
          value={spec.tool}
          set={(tool) => change({ tool })}
          faults={faultsAt("/tool")}
        />
        <Field label={t("approvals.ofAgent")} faults={faultsAt("/agent")}>
          {({ id, ...marks }) => (
            <NameSelect
              id={id}
              marks={marks}
              value={spec.agent ?? ""}
              set={(agent) => change({ agent: given(agent) })}
              // A longer list is not read to its end: a name without an option may exist.
              options={agents?.has_more ? undefined : agents?.items.map(({ name }) => ({ name, note: "" }))}
            />
          )}
        </Field>
        <TextField
          label={t("approvals.ofRun")}
          value={spec.run_id}
          set={(run) => change({ run_id: given(run) })}
          faults={faultsAt("/run_id")}
        />
        <TextField
          label={t("approvals.count")}
          type="number"
          value={spec.count == null ? "" : `${spec.count}`}
          set={(count) => change({ count: count === "" ? undefined : Number(count) })}
          faults={faultsAt("/count")}
        />
        <TextField
          label={t("approvals.expiresAt")}
          type="datetime-local"
          value={localTime(`${spec.expires_at ?? ""}`)}
          set={(time) => change({ expires_at: time === "" ? undefined : Number(secondsOf(time)) })}
          faults={faultsAt("/expires_at")}
        />
      </div>
      <RulesField
        label={t("approvals.arguments")}
        value={spec.arguments}
        set={(rules) => change({ arguments: rules })}
        faults={faultsAt("/arguments")}
        pointer="/arguments"
      />
      <p className="reason">
        {t("approvals.example")} <code>{EXAMPLE}</code>
      </p>
    </>
  );
}

function given(text: string): string | undefined {
  return text.trim() === "" ? undefined : text.trim();
}
