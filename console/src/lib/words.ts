/** Plain texts for words of the API. Words of a later gateway are shown as they are. */

import type { TextKey, Translate } from "../i18n";

const WORDS: Record<string, TextKey> = {
  manifest: "word.manifest",
  agent_policy: "word.agent_policy",
  config_selector: "word.config_selector",
  event_scope: "word.event_scope",
  "every layer allows it": "word.everyLayer",
  "granted by the run's snapshot": "word.snapshot",
  "open to every run": "word.everyRun",
  actions_failed: "word.actions_failed",
  allow: "word.allow",
  deny: "word.deny",
};

/** A setting of the agent's policy that grants, such as `resource_policy.tools`. */
const ALLOWING = /^(\S+) allows it$/;

export function plainWord(t: Translate, word: string): string {
  const setting = ALLOWING.exec(word)?.[1];
  if (setting !== undefined) return t("word.settingAllows", { setting });
  const key = WORDS[word];
  return key === undefined ? word : t(key);
}
