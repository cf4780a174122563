import { useText } from "../i18n";
import { Copy } from "./parts";

interface ShownOnceProps {
  hint: string;
  secret: string;
  close: () => void;
}

/** A created secret. The gateway shows it once. */
export function ShownOnce({ hint, secret, close }: ShownOnceProps) {
  const t = useText();
  return (
    <div className="card">
      <p>{hint}</p>
      <div className="command">
        <pre>{secret}</pre>
        <Copy text={secret} />
      </div>
      <button type="button" onClick={close}>
        {t("close")}
      </button>
    </div>
  );
}
