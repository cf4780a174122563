import { type ReactNode, StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { signOut, takeKeyFromAddress } from "./api/session";
import { finishSignIn, takeReturn } from "./api/sign-in";
import { App } from "./app";
import { currentLanguage, translate } from "./i18n";
import { SignInProblem } from "./lib/pkce";
import "./style.css";
import { SigningIn } from "./views/signing-in";

takeKeyFromAddress();
// A link with a key may be opened in a tab that already shows the page.
window.addEventListener("hashchange", takeKeyFromAddress);

const element = document.getElementById("app");
if (element !== null) {
  const root = createRoot(element);
  const show = (page: ReactNode) => root.render(<StrictMode>{page}</StrictMode>);
  const returned = takeReturn();
  if (returned === null) {
    show(<App />);
  } else {
    show(<SigningIn />);
    finishSignIn(returned).then(
      // Loaded again, with the policy of every other page: only this one may connect to the provider.
      (path) => location.replace(path),
      (error) => {
        signOut(noticeOf(error));
        show(<App />);
      },
    );
  }
}

function noticeOf(error: unknown): string {
  if (error instanceof SignInProblem) return translate(currentLanguage(), error.key, error.values);
  return error instanceof Error ? error.message : `${error}`;
}
