import { useRef } from "react";
import { useText } from "../i18n";
import { type ApiCall, curl, python, typescript } from "../lib/snippets";
import { Copy } from "./parts";

export interface CopiedAct {
  label: string;
  call: ApiCall;
}

/** Copies acts of the page as commands and programs. */
export function CopyMenu({ acts }: { acts: CopiedAct[] }) {
  const t = useText();
  const element = useRef<HTMLDetailsElement>(null);
  const { origin } = location;
  return (
    <details
      ref={element}
      className="menu"
      onKeyDown={(event) => {
        if (event.key !== "Escape" || element.current === null) return;
        element.current.open = false;
        element.current.querySelector("summary")?.focus();
      }}
    >
      <summary className="button quiet">{t("copyAs.title")}</summary>
      <div className="acts">
        {acts.map(({ label, call }) => (
          // biome-ignore lint/a11y/useSemanticElements: a fieldset is for fields
          <div key={`${call.path} ${label}`} role="group" aria-label={label}>
            <span className="faint">{label}</span>
            <Copy text={curl(call, origin)} label="copyAs.curl" />
            {call.client !== undefined && (
              <>
                <Copy text={python(call.client, origin)} label="copyAs.python" />
                <Copy text={typescript(call.client, origin)} label="copyAs.typescript" />
              </>
            )}
          </div>
        ))}
      </div>
    </details>
  );
}
