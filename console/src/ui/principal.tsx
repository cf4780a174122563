import { Link } from "@tanstack/react-router";
import type { Schema } from "../api/client";
import { useRights } from "../api/rights";
import { type TextKey, useText } from "../i18n";
import { writeOut } from "../lib/answer-form";
import { keyAnchor } from "./key-name";

/** Kinds without an object of their own. */
const TEXTS: Record<string, TextKey> = {
  link: "principal.link",
  config: "principal.config",
  cli: "principal.cli",
  gateway: "principal.gateway",
};

/** The credential or component that made a change or a decision, linked to its view. */
export function PrincipalName({ principal }: { principal: Schema<"Principal"> }) {
  const t = useText();
  const rights = useRights();
  const { kind, id } = principal;
  const text = TEXTS[kind];
  if (text !== undefined || id == null) return <>{text === undefined ? kind : t(text)}</>;
  if (kind === "run") {
    return (
      <>
        {t("principal.run")}{" "}
        <Link to="/runs/$runId" params={{ runId: id }}>
          {id}
        </Link>
      </>
    );
  }
  if (kind !== "api_key") {
    return (
      <>
        {kind === "event" ? t("principal.event") : kind} <code>{id}</code>
      </>
    );
  }
  const name = principal.name == null ? <code>{id}</code> : writeOut(principal.name);
  return (
    <>
      {t("run.key")}{" "}
      {rights?.readsAdmin ? (
        <Link to="/system" hash={keyAnchor(id)} title={id}>
          {name}
        </Link>
      ) : (
        name
      )}
    </>
  );
}
