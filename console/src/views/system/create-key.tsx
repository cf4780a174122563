import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { api, dataOf, type Schema } from "../../api/client";
import { useText } from "../../i18n";
import { Problem } from "../../ui/problem";
import { ShownOnce } from "../../ui/shown-once";

const ROLES = ["client", "approver", "viewer", "operator", "admin"] as Schema<"KeyRole">[];

/** Creates a key, and shows it once. */
export function CreateKey() {
  const t = useText();
  const client = useQueryClient();
  const [name, setName] = useState("");
  const [role, setRole] = useState<Schema<"KeyRole">>("client");
  const create = useMutation({
    mutationFn: () => dataOf(api.POST("/v1/api-keys", { body: { name, role } })),
    // The answer has the key: the cache of mutations forgets it with this view.
    gcTime: 0,
    onSuccess: () => client.invalidateQueries({ queryKey: ["api-keys"] }),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    create.mutate();
  };
  return (
    <>
      <form className="quick" onSubmit={submit}>
        <input
          required
          aria-label={t("agents.name")}
          placeholder={t("agents.name")}
          value={name}
          onChange={(event) => setName(event.target.value)}
        />
        <select
          aria-label={t("keysOfApi.role")}
          value={role}
          onChange={(event) => setRole(event.target.value as Schema<"KeyRole">)}
        >
          {ROLES.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
        <button type="submit" disabled={create.isPending}>
          {t("keysOfApi.create")}
        </button>
      </form>
      {create.error !== null && <Problem error={create.error} />}
      {create.data !== undefined && (
        <ShownOnce hint={t("keysOfApi.once")} secret={create.data.key} close={() => create.reset()} />
      )}
    </>
  );
}
