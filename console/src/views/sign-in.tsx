import { type FormEvent, useState } from "react";
import { signIn, signOutNotice } from "../api/session";
import { useText } from "../i18n";
import { LanguageChoice } from "../ui/language";
import { Copy } from "../ui/parts";
import { ProviderSignIn } from "./provider-sign-in";

const COMMAND = "runnel token create --role admin --name console";

export function SignIn() {
  const t = useText();
  const [key, setKey] = useState("");
  const notice = signOutNotice();
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (key.trim() !== "") signIn(key.trim());
  };
  return (
    <main className="sign-in">
      <h1>Runnel</h1>
      <ProviderSignIn />
      <form onSubmit={submit}>
        <label htmlFor="key">{t("signIn.key")}</label>
        <input
          id="key"
          type="password"
          autoComplete="off"
          spellCheck={false}
          placeholder="rnl_…"
          value={key}
          onChange={(event) => setKey(event.target.value)}
        />
        <button type="submit" className="primary">
          {t("signIn.submit")}
        </button>
      </form>
      {notice !== null && (
        <p className="problem" role="alert">
          {notice}
        </p>
      )}
      <p className="faint">{t("signIn.scope")}</p>
      <p>{t("signIn.create")}</p>
      <div className="command">
        <pre>{COMMAND}</pre>
        <Copy text={COMMAND} />
      </div>
      <LanguageChoice />
    </main>
  );
}
