import { useQuery } from "@tanstack/react-query";
import { interactionsQuery } from "../../api/queries";
import { useText } from "../../i18n";
import { QuestionLine } from "../inbox/answered";
import type { ConversationKey } from "./queries";

/** Questions and approvals of the conversation, with their answers. */
export function ConversationQuestions({
  conversation: { conversationId, botId, threadId },
}: {
  conversation: ConversationKey;
}) {
  const t = useText();
  const filters = { conversation_id: conversationId, bot_id: botId ?? "", thread_id: threadId ?? "" };
  const questions = useQuery(interactionsQuery(filters)).data?.items ?? [];
  if (questions.length === 0) return null;
  return (
    <details className="card">
      <summary>{t("conversations.questions", { n: questions.length })}</summary>
      {questions.map((question) => (
        <QuestionLine key={question.id} question={question} of="" />
      ))}
    </details>
  );
}
