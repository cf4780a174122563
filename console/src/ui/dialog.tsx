import { type ReactNode, useEffect, useId, useRef } from "react";
import { createPortal } from "react-dom";
import { useText } from "../i18n";

/**
 * Modal dialog of the browser. Radix's one locks scrolling by an inline style sheet, which the page's
 * Content-Security-Policy refuses.
 */
export function Dialog({
  title,
  children,
  close,
}: {
  title: string;
  children: ReactNode;
  close: () => void;
}) {
  const t = useText();
  const element = useRef<HTMLDialogElement>(null);
  const label = useId();
  useEffect(() => {
    const dialog = element.current;
    dialog?.showModal();
    return () => dialog?.close();
  }, []);
  // Outside of the element that opens it: its styles and its form do not apply.
  return createPortal(
    <dialog ref={element} aria-labelledby={label} onClose={close}>
      <header>
        <h2 id={label}>{title}</h2>
        <button type="button" className="quiet" onClick={close} aria-label={t("close")}>
          ×
        </button>
      </header>
      {children}
    </dialog>,
    document.body,
  );
}
