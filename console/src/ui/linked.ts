import { useLocation } from "@tanstack/react-router";
import { type RefObject, useEffect, useRef } from "react";

/** Scrolls to an element that the fragment of the address names. Its data may load after the page. */
export function useLinked<Shown extends Element>(
  id: string,
): { ref: RefObject<Shown | null>; isLinked: boolean } {
  const ref = useRef<Shown>(null);
  const isLinked = useLocation().hash === id;
  useEffect(() => {
    if (isLinked) ref.current?.scrollIntoView({ block: "center" });
  }, [isLinked]);
  return { ref, isLinked };
}
