import { useQuery } from "@tanstack/react-query";
import { Link, Outlet, useNavigate } from "@tanstack/react-router";
import { useEffect } from "react";
import { useFeed } from "./api/feed";
import { nextCursor, openQuestionsQuery } from "./api/queries";
import { useRights } from "./api/rights";
import { signOut } from "./api/session";
import { endSession } from "./api/sign-in";
import { useText } from "./i18n";
import { Boundary } from "./ui/boundary";
import { KeyHelp, useKeys } from "./ui/keys";
import { LanguageChoice } from "./ui/language";
import { PauseBanner } from "./ui/pause-banner";

export function Shell() {
  const t = useText();
  const navigate = useNavigate();
  const waiting = useWaiting();
  const rights = useRights();
  const leave = async () => signOut((await endSession()) ? null : t("signOut.open"));
  useFeed();
  useKeys([
    { key: "r", what: "keys.runs", run: () => void navigate({ to: "/runs" }) },
    { key: "t", what: "keys.try", run: () => void navigate({ to: "/try" }) },
    { key: "i", what: "keys.inbox", run: () => void navigate({ to: "/inbox" }) },
  ]);
  return (
    <>
      <header className="top">
        <nav aria-label={t("nav.label")}>
          <Link to="/runs">{t("nav.runs")}</Link>
          <Link to="/inbox">
            {t("nav.inbox")}
            {waiting !== "" && <span className="count">{waiting}</span>}
          </Link>
          {(rights?.posts || rights?.readsAdmin) && <Link to="/try">{t("nav.try")}</Link>}
          <Link to="/conversations">{t("nav.conversations")}</Link>
          <Link to="/actions">{t("nav.actions")}</Link>
          {rights?.readsAdmin && <AdminLinks />}
          {rights?.owns === false && <Link to="/usage">{t("nav.usage")}</Link>}
          {(rights?.readsAdmin || rights?.owns) && <Link to="/system">{t("nav.system")}</Link>}
          {/* That page has no way back. */}
          <a href="/docs" target="_blank" rel="noreferrer noopener" title={t("nav.newTab")}>
            {t("nav.api")}
            <span aria-hidden="true"> ↗</span>
          </a>
        </nav>
        <LanguageChoice />
        <button type="button" className="quiet" onClick={() => void leave()}>
          {t("signOut")}
        </button>
      </header>
      <PauseBanner />
      <Boundary>
        <Outlet />
      </Boundary>
      <KeyHelp />
    </>
  );
}

/** Views that only the admin API fills. */
function AdminLinks() {
  const t = useText();
  return (
    <>
      <Link to="/approvals">{t("nav.approvals")}</Link>
      <Link to="/agents">{t("nav.agents")}</Link>
      <Link to="/endpoints">{t("nav.endpoints")}</Link>
      <Link to="/catalogue">{t("nav.catalogue")}</Link>
      <Link to="/schedules">{t("nav.schedules")}</Link>
      <Link to="/sources">{t("nav.sources")}</Link>
      <Link to="/webhooks">{t("nav.webhooks")}</Link>
      <Link to="/changes">{t("nav.changes")}</Link>
    </>
  );
}

/** Number of open questions, such as `3` or `100+`; empty without one. It is also in the title. */
function useWaiting(): string {
  const open = useQuery(openQuestionsQuery());
  const found = open.data?.items.length ?? 0;
  const more = open.data !== undefined && nextCursor(open.data) !== undefined ? "+" : "";
  const waiting = found === 0 ? "" : `${found}${more}`;
  useEffect(() => {
    document.title = waiting === "" ? "Runnel" : `(${waiting}) Runnel`;
  }, [waiting]);
  return waiting;
}
