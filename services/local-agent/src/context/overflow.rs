//! Recognises context overflow by the error texts of providers.

/// Phrases that occur in this order, in lower case.
const OVERFLOWS: &[&[&str]] = &[
    // OpenAI and compatible: Groq, Together, DeepSeek, Mistral, vLLM, OpenRouter.
    &["context_length_exceeded"],
    &["context length exceeded"],
    &["maximum context length"],
    &["max context length"],
    &["exceeds the context window"],
    &["exceeds the model's context window"],
    &["larger than the model's context window"],
    &["input tokens exceed the configured limit"],
    &["reduce the length of the messages"],
    &["reduce the length of the input"],
    &["reduce the length of your prompt"],
    // Anthropic
    &["prompt is too long"],
    &["request_too_large"],
    &["exceed context limit"],
    &["model_context_window_exceeded"],
    // Gemini
    &["input token count", "exceeds the maximum number of tokens"],
    &["token count", "exceeds the limit of"],
    // Bedrock, Cohere
    &["input is too long"],
    &["too many input tokens"],
    &["too many tokens"],
    &["number of tokens in the prompt cannot exceed"],
    // xAI; models of Moonshot, MiniMax, Zhipu and Volcengine
    &["maximum prompt length"],
    &["exceeded model token limit"],
    &["context window exceeds limit"],
    &["prompt exceeds max length"],
    &["exceed max message tokens"],
    // Qwen, Baidu
    &["range of input length should be"],
    &["prompt tokens too long"],
    // llama.cpp, Ollama, LM Studio, text-generation-inference, vLLM
    &["exceeds the available context size"],
    &["exceed_context_size_error"],
    &["context size has been exceeded"],
    &["prompt too long"],
    &["greater than the context length"],
    &["tokens", "max_new_tokens", "must be <="],
    &["longer than the maximum model length"],
    &["maximum model length", "prompt"],
    // any provider
    &["context window", "exceeded"],
    &["token limit exceeded"],
    // Gateways without a body: Cerebras
    &["400 status code (no body)"],
    &["413 status code (no body)"],
];

/// Phrases of rate limits: a retry helps, a shorter request does not.
const TOO_OFTEN: &[&str] = &[
    "rate limit",
    "rate_limit",
    "rate-limit",
    "ratelimit",
    "too many requests",
    "throttling",
    "throttled",
    "tokens per min",
    "tokens per day",
    "please wait before trying again",
    "quota",
];
const TOO_OFTEN_STARTS: &[&str] = &["service unavailable:", "throttling error:"];

/// True when the message of a failed model call reports an overflow. Reads the first 16 KiB.
pub fn is_context_overflow(message: &str) -> bool {
    let message = &message[..message.floor_char_boundary(16 * 1024)];
    let message = message.trim().to_lowercase().replace('’', "'");
    // Rate limits first: some of their texts mention tokens, too.
    let comes_too_often = TOO_OFTEN.iter().any(|words| message.contains(words))
        || TOO_OFTEN_STARTS
            .iter()
            .any(|start| message.starts_with(start));
    !comes_too_often && OVERFLOWS.iter().any(|words| says(&message, words))
}

/// True when all phrases occur in order.
fn says(message: &str, words: &[&str]) -> bool {
    let mut rest = message;
    words.iter().all(|words| match rest.split_once(words) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_overflow_errors_of_each_provider() {
        for message in [
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 8545 tokens. Please reduce the length of the messages.",
            "{\"error\":{\"code\":\"context_length_exceeded\"}}",
            "Your input exceeds the context window of this model. Please adjust your input and try again.",
            "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000 tokens.",
            "prompt is too long: 210000 tokens > 200000 maximum",
            "413 {\"type\":\"error\",\"error\":{\"type\":\"request_too_large\",\"message\":\"Request exceeds the maximum size\"}}",
            "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000",
            "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
            "prompt token count of 140000 exceeds the limit of 128000",
            "ValidationException: Input is too long for requested model.",
            "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000",
            "ValidationException: Too many input tokens. Max input tokens: 8192, request input token count: 9000",
            "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
            "Please reduce the length of the messages or completion.",
            "the request exceeds the available context size (4096 tokens), try increasing it",
            "exceed_context_size_error",
            "The number of tokens to keep from the initial prompt is greater than the context length.",
            "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
            "This endpoint's maximum context length is 1048576 tokens. However, you requested about 1293741 tokens",
            "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens",
            "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
            "Invalid request: Your request exceeded model token limit: 131072",
            "invalid params, context window exceeds limit",
            "Range of input length should be [1, 30720]",
            "Prompt exceeds max length",
            "Total tokens of image and text exceed max message tokens",
            "prompt too long; exceeded max context length by 100 tokens",
            "The request is larger than the model’s context window",
            "400 status code (no body)",
        ] {
            assert!(is_context_overflow(message), "{message}");
        }
    }

    #[test]
    fn rate_limits_are_not_overflows() {
        for message in [
            "",
            "Rate limit reached: too many tokens in this minute",
            "rate_limit_exceeded: maximum context length is fine",
            "429 Too Many Requests",
            "ThrottlingException: Too many tokens, please wait before trying again.",
            "Throttling error: Too many tokens",
            "Service unavailable: prompt is too long",
            "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40000",
            "You exceeded your current quota",
            "invalid api key",
            "the tool name is too long",
            "500 status code (no body)",
            "max_tokens must be at most 4096",
            "must be <= max_new_tokens",
        ] {
            assert!(!is_context_overflow(message), "{message}");
        }
        assert!(!is_context_overflow(&"长".repeat(30_000)));
    }
}
