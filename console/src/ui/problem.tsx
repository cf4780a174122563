import { ApiError, faultsOf, isUnsupported } from "../api/errors";
import { useText } from "../i18n";

/** An error in the gateway's own words, with the fields that it names. */
export function Problem({ error, retry }: { error: unknown; retry?: () => void }) {
  const t = useText();
  if (isUnsupported(error)) return <p className="warning">{t("problem.older")}</p>;
  const isOffline = !(error instanceof ApiError) && error instanceof TypeError;
  const message = error instanceof Error ? error.message : `${error}`;
  return (
    <div className="problem" role="alert">
      <p>
        {error instanceof ApiError && <code>{error.code}</code>} {isOffline ? t("problem.offline") : message}
      </p>
      <ul>
        {faultsOf(error).map((fault) => (
          <li key={`${fault.pointer} ${fault.message}`}>
            <code>{fault.pointer}</code> {fault.message}
          </li>
        ))}
      </ul>
      {retry && (
        <button type="button" onClick={retry}>
          {t("problem.retry")}
        </button>
      )}
    </div>
  );
}
