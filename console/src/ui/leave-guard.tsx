import { useBlocker } from "@tanstack/react-router";
import { useText } from "../i18n";
import { Dialog } from "./dialog";

/** Asks before a view with unsaved changes is left. The browser asks when the tab is closed or loaded again. */
export function LeaveGuard({ isDirty }: { isDirty: boolean }) {
  const t = useText();
  const blocker = useBlocker({
    shouldBlockFn: () => isDirty,
    enableBeforeUnload: () => isDirty,
    withResolver: true,
  });
  if (blocker.status !== "blocked") return null;
  return (
    <Dialog title={t("leave.title")} close={blocker.reset}>
      <p>{t("leave.effect")}</p>
      <div className="actions">
        <button type="button" className="primary" onClick={blocker.reset}>
          {t("leave.stay")}
        </button>
        <button type="button" className="danger" onClick={blocker.proceed}>
          {t("leave.leave")}
        </button>
      </div>
    </Dialog>
  );
}
