import { useMutation } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { useText } from "../i18n";
import { Dialog } from "./dialog";
import { Problem } from "./problem";

interface ConfirmProps {
  label: string;
  title: string;
  effect: string;
  confirm: string;
  act: () => Promise<unknown>;
  className?: string;
  /** Fields of the act. */
  children?: ReactNode;
}

/** A button whose act needs a confirmation. */
export function ConfirmButton({
  label,
  title,
  effect,
  confirm,
  act,
  className = "danger",
  children,
}: ConfirmProps) {
  const t = useText();
  const [isAsking, setAsking] = useState(false);
  const mutation = useMutation({ mutationFn: act, onSuccess: () => setAsking(false) });
  return (
    <>
      <button type="button" className={className} onClick={() => setAsking(true)}>
        {label}
      </button>
      {isAsking && (
        <Dialog title={title} close={() => setAsking(false)}>
          <p>{effect}</p>
          {children}
          {mutation.error !== null && <Problem error={mutation.error} />}
          <div className="actions">
            <button
              type="button"
              className="danger"
              disabled={mutation.isPending}
              onClick={() => mutation.mutate()}
            >
              {confirm}
            </button>
            <button type="button" onClick={() => setAsking(false)}>
              {t("agents.back")}
            </button>
          </div>
        </Dialog>
      )}
    </>
  );
}
