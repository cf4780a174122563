import { useText } from "../i18n";

/** The page while it exchanges the answer of the provider. */
export function SigningIn() {
  const t = useText();
  return (
    <main className="sign-in">
      <h1>Runnel</h1>
      <p role="status">{t("signIn.running")}</p>
    </main>
  );
}
