import type { ReactNode } from "react";
import { useText } from "../i18n";
import { type Change, textsOf } from "../lib/changes";
import { DiffView } from "./diff";
import { PrincipalName } from "./principal";
import { When } from "./when";

interface ItemProps {
  change: Change;
  /** The changed object, unless the page shows it. */
  object?: string;
  /** Links beside the author. */
  links?: ReactNode;
  /** Acts on an opened change. */
  children?: ReactNode;
}

/** A change with its author; opened, also with the old and new values. */
export function ChangeItem({ change, object, links, children }: ItemProps) {
  const t = useText();
  return (
    <li>
      <details>
        <summary>
          {t(`changes.${change.action}`)} {object !== undefined && <strong>{object}</strong>}{" "}
          <When at={change.at} />
        </summary>
        <DiffView {...textsOf(change)} />
        {change.request_id != null && (
          <p className="faint">
            {t("changes.request")} <code>{change.request_id}</code>
          </p>
        )}
        {children}
      </details>
      {/* Not in the summary: a link must not be within another control. */}
      <div className="faint">
        {t("changes.by")} <PrincipalName principal={change.changed_by} /> {links}
      </div>
    </li>
  );
}
