import { type Language, setLanguage, useLanguage, useText } from "../i18n";

export function LanguageChoice() {
  const t = useText();
  const language = useLanguage();
  return (
    <select
      className="quiet"
      aria-label={t("language")}
      value={language}
      onChange={(event) => setLanguage(event.target.value as Language)}
    >
      <option value="en">English</option>
      <option value="zh">中文</option>
    </select>
  );
}
