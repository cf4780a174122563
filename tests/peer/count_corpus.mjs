// Counts the corpus as OpenAI documents it (its cookbook, "How to count tokens with tiktoken"): texts by tiktoken,
// messages and tools by the published formula. Writes tests/fixtures/token_corpus.json.
//   npm install js-tiktoken && node count_corpus.mjs > ../fixtures/token_corpus.json
import { getEncoding } from "js-tiktoken";

const texts = {
  english:
    "A gateway for agent runs keeps every result in a ledger. Clients may drop and resume at will; nothing is lost, nothing is told twice. When the runner goes silent, the run ends with a reason that an operator can act upon, and its token opens nothing any more. ",
  chinese:
    "网关把每一个智能体运行的结果都写入账本。客户端可以随时断开并恢复，不会丢失任何内容，也不会重复。运行结束之后，它的令牌立即失效，任何副本都不再接受。",
  japanese:
    "ゲートウェイはエージェントの実行結果をすべて台帳に記録します。クライアントはいつでも切断し、再開できます。実行が終わると、そのトークンは何も開けなくなります。",
  code: `pub async fn until_over(&self, grant: &Grant) -> Over {
    tokio::select! {
        () = tokio::time::sleep(self.time_left(grant)) => Over::Deadline,
        over = self.until_ended(grant) => over,
    }
}
for (index, entry) in config.models.iter().enumerate() {
    faults.push(ConfigFault::new(format!("models[{index}].provider"), "must be one of model_providers"));
}
`,
  json: '{"run_id":"01a1ffb1-ba00-7c3a-9b1e-5f0c2a7d4e61","sequence":4,"type":"run.completed","data":{"finish_reason":"stop"},"created_at":1795291201}',
};
const tool = (name, description, properties, required) => ({
  name, description, parameters: { type: "object", properties, required },
});
const tools = [
  tool("get_weather", "Gives the weather of a city, now or on a day to come.", {
    city: { type: "string", description: "The city, for example Oslo." },
    unit: { type: "string", description: "How warm it is, in which unit.", enum: ["celsius", "fahrenheit"] },
  }, ["city"]),
  tool("search_documents", "Finds the passages of the handbook that are closest to a question.", {
    query: { type: "string", description: "What is looked for, in whole words." },
    top_k: { type: "integer", description: "How many passages, 1 to 50." },
    language: { type: "string", description: "Only passages of this language." },
  }, ["query"]),
  tool("create_ticket", "Opens a ticket at the help desk. It cannot be taken back.", {
    title: { type: "string", description: "One line that says what is wrong." },
    priority: { type: "string", description: "How urgent it is.", enum: ["low", "normal", "high", "urgent"] },
    details: { type: "string", description: "Everything that was tried, and what came of it." },
  }, ["title", "priority"]),
];

function countMessages(encoding, messages) {
  let tokens = 3;
  for (const message of messages) {
    tokens += 3;
    for (const [key, value] of Object.entries(message)) {
      tokens += encoding.encode(value).length + (key === "name" ? 1 : 0);
    }
  }
  return tokens;
}

function countTools(encoding, list) {
  if (list.length === 0) return 0;
  const count = (text) => encoding.encode(text).length;
  let tokens = 12;
  for (const { name, description, parameters } of list) {
    tokens += 7 + count(`${name}:${description.replace(/\.$/, "")}`);
    const properties = Object.entries(parameters.properties);
    if (properties.length > 0) tokens += 3;
    for (const [key, { type, description: about, enum: values }] of properties) {
      tokens += 3 + count(`${key}:${type}:${about.replace(/\.$/, "")}`);
      if (values) tokens += -3 + values.reduce((sum, value) => sum + 3 + count(value), 0);
    }
  }
  return tokens;
}

const cases = [];
for (const [name, vocabulary] of [["o200k", "o200k_base"], ["cl100k", "cl100k_base"]]) {
  const encoding = getEncoding(vocabulary);
  for (const [kind, text] of Object.entries(texts)) {
    for (const times of [1, 20]) {
      const messages = [
        { role: "system", content: "You are helpful, and you say so in few words." },
        { role: "user", content: text.repeat(times) },
        { role: "assistant", content: text },
        { role: "user", name: "ann", content: text.slice(0, 60) },
      ];
      for (const offered of [[], tools]) {
        const tokens = countMessages(encoding, messages) + countTools(encoding, offered);
        cases.push({ vocabulary: name, kind, messages, tools: offered, tokens });
      }
    }
  }
}
process.stdout.write(JSON.stringify(cases));
