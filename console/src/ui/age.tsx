import { useEffect, useState } from "react";
import { useText } from "../i18n";
import { When } from "./when";

/** A renewal that takes longer is reported. */
const SLOW_MS = 3000;

interface Renewed {
  isFetching: boolean;
  error: unknown;
  /** Epoch milliseconds; 0 without data. */
  dataUpdatedAt: number;
}

/** Shows the age of a list while the gateway is slow or fails to renew it. */
export function ListAge({ of: { isFetching, error, dataUpdatedAt } }: { of: Renewed }) {
  const t = useText();
  const [isSlow, setSlow] = useState(false);
  useEffect(() => {
    if (!isFetching) return;
    const timer = setTimeout(() => setSlow(true), SLOW_MS);
    return () => {
      clearTimeout(timer);
      setSlow(false);
    };
  }, [isFetching]);
  const isShown = dataUpdatedAt > 0 && (error !== null || isSlow);
  return (
    <p className="faint age" role="status">
      {isShown && (
        <>
          {t("list.asOf")} <When at={Math.floor(dataUpdatedAt / 1000)} />. {error === null && t("list.waits")}
        </>
      )}
    </p>
  );
}
