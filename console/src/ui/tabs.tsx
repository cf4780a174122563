import * as Radix from "@radix-ui/react-tabs";
import type { ReactNode } from "react";
import { Boundary } from "./boundary";

export interface Tab {
  id: string;
  label: string;
  content: () => ReactNode;
}

/** Tabs whose choice is in the address. Only the chosen one loads its data. */
export function Tabs({
  tabs,
  chosen,
  choose,
}: {
  tabs: Tab[];
  chosen: string;
  choose: (id: string) => void;
}) {
  return (
    <Radix.Root value={chosen} onValueChange={choose} activationMode="manual">
      <Radix.List className="tabs">
        {tabs.map((tab) => (
          <Radix.Trigger key={tab.id} value={tab.id}>
            {tab.label}
          </Radix.Trigger>
        ))}
      </Radix.List>
      {tabs.map((tab) => (
        <Radix.Content key={tab.id} value={tab.id}>
          {tab.id === chosen && <Boundary>{tab.content()}</Boundary>}
        </Radix.Content>
      ))}
    </Radix.Root>
  );
}
