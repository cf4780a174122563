/** Plain texts for words of the API. Words of a later gateway are shown as they are. */

import type { TextKey, Translate } from "../i18n";

const WORDS: Record<string, TextKey> = {
  manifest: "word.manifest",
  agent_policy: "word.agent_policy",
  config_selector: "word.config_selector",
  event_scope: "word.event_scope",
  "every layer allows it": "word.everyLayer",
  "granted by the run's snapshot": "word.snapshot",
  actions_failed: "word.actions_failed",
  allow: "word.allow",
  deny: "word.deny",
};

export function plainWord(t: Translate, word: string): string {
  const key = WORDS[word];
  return key === undefined ? word : t(key);
}
