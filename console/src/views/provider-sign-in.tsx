import { useEffect, useState } from "react";
import { readProvider, startSignIn } from "../api/sign-in";
import { useText } from "../i18n";
import type { Provider } from "../lib/pkce";

/** The button to sign in with the provider of the gateway, if it has one for this page. */
export function ProviderSignIn() {
  const t = useText();
  const [provider, setProvider] = useState<Provider | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    let isShown = true;
    readProvider().then(
      (found) => isShown && setProvider(found),
      (error: unknown) => isShown && setProblem(error instanceof Error ? error.message : `${error}`),
    );
    return () => {
      isShown = false;
    };
  }, []);
  if (problem !== null) return <p className="faint">{t("signIn.unavailable", { reason: problem })}</p>;
  if (provider === null) return null;
  const { host } = provider;
  // Browsers have SHA-256 in secure contexts only.
  if (!window.isSecureContext) return <p className="faint">{t("signIn.insecure", { host })}</p>;
  return (
    <p>
      <button type="button" className="primary" onClick={() => void startSignIn(provider)}>
        {t("signIn.with", { host })}
      </button>
    </p>
  );
}
