import type { RunStatus } from "../api/client";
import { useText } from "../i18n";
import { Badge } from "./parts";

const TONES: Record<RunStatus, string> = {
  created: "wait",
  queued: "wait",
  claimed: "wait",
  running: "live",
  completed: "good",
  failed: "bad",
  cancelled: "off",
  timeout: "bad",
};

export const LIVE: readonly RunStatus[] = ["created", "queued", "claimed", "running"];
export const WAITING: readonly RunStatus[] = ["created", "queued", "claimed"];
export const FAILED: readonly RunStatus[] = ["failed", "timeout"];
export const STATUSES = Object.keys(TONES) as RunStatus[];

export function isLive(status: RunStatus): boolean {
  return LIVE.includes(status);
}

/** True if the reason adds nothing to the shown status. */
export function isPlainEnd(run: { status: RunStatus; status_reason?: string | null }): boolean {
  return run.status === "completed" && ["stop", "waiting_user"].includes(run.status_reason ?? "");
}

export function Status({ status }: { status: RunStatus }) {
  const t = useText();
  return <Badge tone={TONES[status]}>{t(`status.${status}`)}</Badge>;
}
