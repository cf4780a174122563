import { useText } from "../../i18n";
import { Copy } from "../../ui/parts";

interface NewKeyProps {
  hint: "keysOfApi.once" | "workspaces.once";
  apiKey: string;
  close: () => void;
}

/** A created key. The gateway shows it once. */
export function NewKey({ hint, apiKey, close }: NewKeyProps) {
  const t = useText();
  return (
    <div className="card">
      <p>{t(hint)}</p>
      <div className="command">
        <pre>{apiKey}</pre>
        <Copy text={apiKey} />
      </div>
      <button type="button" onClick={close}>
        {t("close")}
      </button>
    </div>
  );
}
