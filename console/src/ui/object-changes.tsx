import { Link } from "@tanstack/react-router";
import { useText } from "../i18n";
import type { ObjectKind } from "../lib/changes";

/** Leads to the changes of one object. */
export function ObjectChanges({ kind, id }: { kind: ObjectKind; id: string }) {
  const t = useText();
  return (
    <Link className="target" to="/changes" search={{ kind, object_id: id }}>
      {t("changes.ofObject")}
    </Link>
  );
}
