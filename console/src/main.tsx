import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { takeKeyFromAddress } from "./api/session";
import { App } from "./app";
import "./style.css";

takeKeyFromAddress();
// A link with a key may be opened in a tab that already shows the page.
window.addEventListener("hashchange", takeKeyFromAddress);

const root = document.getElementById("app");
if (root !== null) {
  createRoot(root).render(
    <StrictMode>
      <App />
    </StrictMode>,
  );
}
