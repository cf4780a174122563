import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useParams } from "@tanstack/react-router";
import { useId, useState } from "react";
import { api, dataOf } from "../../api/client";
import { agentsQuery } from "../../api/queries";
import { useRights } from "../../api/rights";
import { useText } from "../../i18n";
import { generatesSecret, senderAddress } from "../../lib/sources";
import { ConfirmButton } from "../../ui/confirm";
import { KeyName } from "../../ui/key-name";
import { ObjectChanges } from "../../ui/object-changes";
import { Copy, Facts, Loading } from "../../ui/parts";
import { PrincipalName } from "../../ui/principal";
import { Problem } from "../../ui/problem";
import { ShownOnce } from "../../ui/shown-once";
import { When } from "../../ui/when";
import { SourceForm } from "./form";
import { type Source, type SourceSpec, sourceQuery } from "./queries";
import { SourceState } from "./sources";
import { TrySource } from "./try";

/** A source or the form of a new one. The page shows a new secret until it is left or closed. */
export function SourcePage() {
  const t = useText();
  const client = useQueryClient();
  const navigate = useNavigate();
  const rights = useRights();
  const { sourceId } = useParams({ from: "/sources/$sourceId" });
  const [saved, setSaved] = useState<Source | null>(null);
  const create = async (body: SourceSpec) => {
    const source = await dataOf(api.POST("/v1/sources", { body }));
    setSaved(source);
    await client.invalidateQueries({ queryKey: ["sources"] });
    await navigate({ to: "/sources/$sourceId", params: { sourceId: source.id }, ignoreBlocker: true });
  };
  return (
    <main>
      {sourceId === "new" && (
        <>
          <h1>{t("sources.new")}</h1>
          {rights?.changes && <SourceForm create={create} />}
          {rights?.changes === false && <p className="faint">{t("rights.readOnly")}</p>}
        </>
      )}
      {saved?.id === sourceId && saved.secret != null && (
        <ShownOnce
          hint={t(saved.scheme === "none" ? "sources.onceAddress" : "sources.once")}
          secret={
            saved.scheme === "none" ? senderAddress(location.origin, saved.path, saved.secret) : saved.secret
          }
          close={() => setSaved(null)}
        />
      )}
      {sourceId !== "new" && <StoredSource key={sourceId} sourceId={sourceId} show={setSaved} />}
    </main>
  );
}

interface StoredProps {
  sourceId: string;
  /** Shows the new secret of a rotated source. */
  show: (source: Source) => void;
}

function StoredSource({ sourceId, show }: StoredProps) {
  const t = useText();
  const rights = useRights();
  const found = useQuery(sourceQuery(sourceId));
  const source = found.data;
  return (
    <>
      {found.isPending && <Loading what="nav.sources" />}
      {found.error !== null && <Problem error={found.error} retry={() => void found.refetch()} />}
      <h1>{source?.name ?? t("nav.sources")}</h1>
      {source !== undefined && <SourceFacts source={source} />}
      {source?.origin === "api" && rights?.changes && (
        <div className="actions">
          <RotateSecret source={source} show={show} />
          <DeleteSource source={source} />
        </div>
      )}
      {source !== undefined && source.origin !== "api" && <p className="faint">{t("sources.readOnly")}</p>}
      {source !== undefined && <Filters source={source} />}
      {source !== undefined && <TrySource sourceId={sourceId} />}
    </>
  );
}

function SourceFacts({ source }: { source: Source }) {
  const t = useText();
  const agents = useQuery(agentsQuery()).data?.items;
  const address = senderAddress(
    location.origin,
    source.path,
    source.scheme === "none" ? `{${t("sources.secret")}}` : undefined,
  );
  const nameOf = (agentId: string) => agents?.find(({ id }) => id === agentId)?.name ?? agentId;
  return (
    <Facts
      facts={[
        { label: t("run.status"), value: <SourceState source={source} /> },
        {
          label: t("sources.address"),
          value: (
            <>
              {address} <Copy text={address} />
            </>
          ),
        },
        { label: t("sources.scheme"), value: source.scheme },
        { label: t("sources.header"), value: source.header },
        { label: t("sources.prefix"), value: source.prefix },
        { label: t("sources.encoding"), value: source.encoding },
        { label: t("nav.agents"), value: source.agents?.map(nameOf).join(", ") },
        { label: t("sources.rights"), value: <KeyName keyId={source.api_key_id} /> },
        { label: t("endpoints.origin"), value: source.origin },
        {
          label: t("sources.previousUntil"),
          value: source.previous_secret_until == null ? null : <When at={source.previous_secret_until} />,
        },
        {
          label: t("agents.updated"),
          value: (
            <>
              <When at={source.updated_at} /> · <PrincipalName principal={source.updated_by} /> ·{" "}
              <ObjectChanges kind="source" id={source.id} />
            </>
          ),
        },
      ]}
    />
  );
}

function Filters({ source: { filter, dedupe } }: { source: Source }) {
  const t = useText();
  return (
    <>
      <h2>{t("sources.filter")}</h2>
      <div className="command">
        <pre>{filter}</pre>
      </div>
      {dedupe != null && (
        <>
          <h2>{t("sources.dedupe")}</h2>
          <div className="command">
            <pre>{dedupe}</pre>
          </div>
        </>
      )}
    </>
  );
}

/** The sender of some schemes chooses the secret. */
function RotateSecret({ source, show }: { source: Source; show: (source: Source) => void }) {
  const t = useText();
  const id = useId();
  const client = useQueryClient();
  const [secret, setSecret] = useState("");
  const params = { path: { source_id: source.id } };
  const rotate = async () => {
    const body = secret === "" ? {} : { secret };
    show(await dataOf(api.POST("/v1/sources/{source_id}/rotate-secret", { params, body })));
    setSecret("");
    await client.invalidateQueries({ queryKey: ["sources"] });
  };
  return (
    <ConfirmButton
      label={t("webhooks.rotate")}
      title={t("sources.rotateTitle", { name: source.name })}
      effect={t("sources.rotateEffect")}
      confirm={t("sources.rotateConfirm")}
      act={rotate}
      className=""
    >
      <div className="field">
        <label htmlFor={id}>
          {t(generatesSecret(source.scheme) ? "endpoints.secret" : "sources.secret")}
        </label>
        <input
          id={id}
          type="password"
          autoComplete="off"
          value={secret}
          onChange={(event) => setSecret(event.target.value)}
        />
      </div>
    </ConfirmButton>
  );
}

function DeleteSource({ source }: { source: Source }) {
  const t = useText();
  const client = useQueryClient();
  const navigate = useNavigate();
  const remove = async () => {
    const params = { path: { source_id: source.id } };
    await dataOf(api.DELETE("/v1/sources/{source_id}", { params }));
    await navigate({ to: "/sources", ignoreBlocker: true });
    client.removeQueries({ queryKey: sourceQuery(source.id).queryKey });
    await client.invalidateQueries({ queryKey: ["sources"] });
  };
  return (
    <ConfirmButton
      label={t("agents.delete")}
      title={t("agents.deleteTitle", { name: source.name })}
      effect={t("sources.deleteEffect")}
      confirm={t("sources.deleteConfirm")}
      act={remove}
    />
  );
}
