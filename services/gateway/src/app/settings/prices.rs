//! Prices of models: defaults by kind of provider, and warnings.

use domain::budget::Budget;
use models::{Price, PriceTier, TokenRates};

use crate::config::{Config, ConfigFault, ModelPrices, PriceEntry};

/// Prices relative to those of input and output.
#[derive(Clone, Copy)]
struct PriceRatios {
    cache_read: f64,
    cache_write_5m: f64,
    cache_write_1h: f64,
    reasoning: f64,
}

/// Default ratios of a kind of provider. Anthropic's are those of its price list.
fn default_ratios(kind: &str) -> PriceRatios {
    let (cache_read, cache_write_5m, cache_write_1h) = match kind {
        "anthropic" => (0.1, 1.25, 2.0),
        _ => (1.0, 1.0, 1.0),
    };
    PriceRatios {
        cache_read,
        cache_write_5m,
        cache_write_1h,
        reasoning: 1.0,
    }
}

/// The price of a model whose provider is of this kind. `None`: unknown. A scripted model costs nothing.
pub(super) fn price_of(entry: &PriceEntry, kind: &str) -> Option<Price> {
    if !entry.base.is_some() {
        return (entry.is_free || kind == "scripted").then(Price::default);
    }
    let base = rates(entry.base, default_ratios(kind));
    // An input price of 0 has no ratio; the default avoids a division by zero.
    let ratio = |price: f64, of: f64, default: f64| if of > 0.0 { price / of } else { default };
    let unsaid = default_ratios(kind);
    // A tier keeps the ratios of the base.
    let ratios = PriceRatios {
        cache_read: ratio(base.cache_read, base.input, unsaid.cache_read),
        cache_write_5m: ratio(base.cache_write_5m, base.input, unsaid.cache_write_5m),
        cache_write_1h: ratio(base.cache_write_1h, base.input, unsaid.cache_write_1h),
        reasoning: ratio(base.reasoning, base.output, unsaid.reasoning),
    };
    let tiers = entry.tiers.iter().map(|tier| PriceTier {
        above_tokens: tier.above_tokens,
        rates: rates(tier.prices, ratios),
    });
    Some(Price::new(base, tiers.collect()))
}

fn rates(prices: ModelPrices, ratios: PriceRatios) -> TokenRates {
    let input = prices.input.unwrap_or(0.0);
    let output = prices.output.unwrap_or(0.0);
    TokenRates {
        input,
        cache_read: prices.cache_read.unwrap_or(input * ratios.cache_read),
        cache_write_5m: prices
            .cache_write_5m
            .unwrap_or(input * ratios.cache_write_5m),
        cache_write_1h: prices
            .cache_write_1h
            .unwrap_or(input * ratios.cache_write_1h),
        output,
        reasoning: prices.reasoning.unwrap_or(output * ratios.reasoning),
    }
}

/// A price that the gateway derives because the model's entry does not say it.
pub(crate) struct DerivedPrices {
    pub(crate) model: String,
    pub(crate) text: String,
}

/// Default prices of cached and reasoning tokens in use.
pub(crate) fn derived_prices(config: &Config) -> Vec<DerivedPrices> {
    let models = config.models.iter().filter_map(|entry| {
        let base = entry.price.base;
        base.input?;
        let kind = kind_of(config, entry.provider.as_ref()?)?;
        let rates = rates(base, default_ratios(kind));
        let unsaid = [
            ("cache_read_price", base.cache_read, rates.cache_read),
            (
                "cache_write_price",
                base.cache_write_5m,
                rates.cache_write_5m,
            ),
            (
                "cache_write_1h_price",
                base.cache_write_1h,
                rates.cache_write_1h,
            ),
            ("reasoning_price", base.reasoning, rates.reasoning),
        ];
        let unsaid = unsaid.iter().filter(|(_, price, _)| price.is_none());
        let texts: Vec<_> = unsaid
            .map(|(key, _, derived)| format!("{key} = {derived:.6}"))
            // Six digits are more than enough; trailing zeros would suggest a precision.
            .map(|text| text.trim_end_matches('0').trim_end_matches('.').to_owned())
            .collect();
        let model = entry.model_id.clone();
        (entry.model_type == "llm" && !texts.is_empty()).then(|| DerivedPrices {
            model,
            text: texts.join(", "),
        })
    });
    models.collect()
}

/// Models that budgets of cost refuse or count only in part.
pub(crate) fn unpriced_models(config: &Config) -> Vec<ConfigFault> {
    let of_cost = |budget: &&Budget| budget.cost_micros.is_some();
    let Some(budget) = config.budgets.iter().find(of_cost) else {
        return Vec::new();
    };
    let models = config.models.iter().enumerate();
    let found = models.filter_map(|(index, entry)| {
        let (id, base) = (&entry.model_id, entry.price.base);
        let kind = kind_of(config, entry.provider.as_ref()?)?;
        let is_unpriced = price_of(&entry.price, kind).is_none();
        // Embedding and rerank models have no output tokens.
        let is_half = entry.model_type == "llm" && base.is_some();
        let (key, text) = if is_unpriced {
            let text = format!(
                "model {id} has no price, so its calls are refused where the budget {} applies; set input_price \
                 and output_price, or unpriced = \"free\"",
                budget.name
            );
            ("input_price", text)
        } else if is_half && base.output.is_none() {
            let text = format!("model {id} has no output_price, so its answers cost nothing");
            ("output_price", text)
        } else if is_half && base.input.is_none() {
            let text = format!("model {id} has no input_price, so its prompts cost nothing");
            ("input_price", text)
        } else {
            return None;
        };
        Some(ConfigFault::new(format!("models[{index}].{key}"), text))
    });
    found.collect()
}

fn kind_of<'a>(config: &'a Config, provider: &str) -> Option<&'a str> {
    let mut providers = config.model_providers.iter();
    let entry = providers.find(|entry| entry.name == provider)?;
    Some(&entry.kind)
}

#[cfg(test)]
mod tests {
    use domain::usage::{TokenParts, usage};
    use llm_formats::messages::MessageRelay;
    use serde_json::{Value, json};

    use super::*;
    use crate::config::PriceTierEntry;

    fn entry(input: f64, output: f64, cache_read: Option<f64>) -> PriceEntry {
        PriceEntry {
            base: ModelPrices {
                input: Some(input),
                output: Some(output),
                cache_read,
                ..ModelPrices::default()
            },
            ..PriceEntry::default()
        }
    }

    /// One call of a coding agent: new, cached, and stored input for five minutes and an hour, and output.
    type Call = [u64; 5];

    /// A month of calls: sessions whose prompt grows and is nearly always in the cache.
    fn month() -> Vec<Call> {
        let mut calls = Vec::new();
        for session in 0..440_u64 {
            let mut prefix = 0;
            for turn in 0..25_u64 {
                let stored = if turn == 0 {
                    14_000
                } else {
                    900 + (session * 7 + turn * 131) % 2600
                };
                // Some prefixes expire, and are stored again.
                let (read, stored) = if turn == 12 && session % 9 == 0 {
                    (0, prefix + stored)
                } else {
                    (prefix, stored)
                };
                let long = if session % 4 == 0 { stored / 2 } else { 0 };
                calls.push([
                    3 + turn * 5,
                    read,
                    stored - long,
                    long,
                    120 + (session * 31 + turn * 57) % 900,
                ]);
                prefix = read + stored;
            }
        }
        calls
    }

    /// A bill in millionths of a dollar, by prices in cents for a million tokens.
    fn bill(calls: &[Call], cents: impl Fn(u64) -> Call) -> u128 {
        let of = |call: &Call| {
            let prompt = call[..4].iter().sum();
            let pairs = call.iter().zip(cents(prompt));
            pairs
                .map(|(count, cents)| u128::from(*count) * u128::from(cents))
                .sum::<u128>()
        };
        calls.iter().map(of).sum::<u128>() / 100
    }

    #[track_caller]
    fn check_bill(found: u64, billed: u128) {
        let difference = u128::from(found).abs_diff(billed);
        assert!(difference * 100 <= billed, "{found}, billed {billed}");
    }

    fn cost(price: &Price, reported: &Value) -> u64 {
        price.cost(TokenParts::of(usage(reported).as_ref()))
    }

    #[test]
    fn month_of_coding_costs_what_providers_bill() {
        let calls = month();
        let input: u64 = calls.iter().map(|call| call[..4].iter().sum::<u64>()).sum();
        let read: u64 = calls.iter().map(|call| call[1]).sum();
        assert!(
            (85..95).contains(&(read * 100 / input)),
            "{read} of {input}"
        );

        // Claude Sonnet: $3, $0.30, $3.75, $6, $15, in one response and streamed. Only input and output are configured.
        let price = price_of(&entry(3.0, 15.0, None), "anthropic").unwrap();
        let billed = bill(&calls, |_| [300, 30, 375, 600, 1500]);
        let usage_of = |[input, read, short, long, _]: Call, output: u64| {
            json!({"input_tokens": input, "cache_read_input_tokens": read, "cache_creation_input_tokens": short + long,
                "cache_creation": {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": long},
                "output_tokens": output, "service_tier": "standard"})
        };
        let complete = calls
            .iter()
            .map(|call| cost(&price, &usage_of(*call, call[4])));
        check_bill(complete.sum(), billed);
        let streamed = calls.iter().map(|call| {
            let mut relay = MessageRelay::new("m");
            for event in [
                json!({"type": "message_start", "message": {"usage": usage_of(*call, 1)}}),
                json!({"type": "message_delta", "usage": {"output_tokens": call[4]}}),
            ] {
                relay.event(&mut event.as_object().unwrap().clone());
            }
            price.cost(TokenParts::of(relay.usage().as_ref()))
        });
        check_bill(streamed.sum(), billed);

        // GPT-5: $1.25, $0.125, $10 for both answer and reasoning, in both APIs. Prices in cents do not suffice.
        let price = price_of(&entry(1.25, 10.0, Some(0.125)), "openai").unwrap();
        let billed = bill(&calls, |_| [1250, 125, 1250, 1250, 10_000]) / 10;
        for names in [["prompt", "completion"], ["input", "output"]] {
            let [of_input, of_output] = names;
            let usage_of = |call: &Call| {
                json!({format!("{of_input}_tokens"): call[..4].iter().sum::<u64>(),
                    format!("{of_input}_tokens_details"): {"cached_tokens": call[1]},
                    format!("{of_output}_tokens"): call[4],
                    format!("{of_output}_tokens_details"): {"reasoning_tokens": call[4] / 2}})
            };
            check_bill(
                calls.iter().map(|call| cost(&price, &usage_of(call))).sum(),
                billed,
            );
        }

        // DeepSeek: $0.28, $0.028, $0.42.
        let price = price_of(&entry(0.28, 0.42, Some(0.028)), "openai").unwrap();
        let billed = bill(&calls, |_| [280, 28, 280, 280, 420]) / 10;
        let usage_of = |[input, read, short, long, output]: Call| {
            let missed = input + short + long;
            json!({"prompt_tokens": missed + read, "prompt_cache_hit_tokens": read,
                "prompt_cache_miss_tokens": missed, "completion_tokens": output})
        };
        check_bill(
            calls
                .iter()
                .map(|call| cost(&price, &usage_of(*call)))
                .sum(),
            billed,
        );
    }

    #[test]
    fn tiers_and_kinds_derive_unsaid_prices() {
        let mut large = entry(3.0, 15.0, None);
        large.tiers = vec![PriceTierEntry {
            above_tokens: 200_000,
            prices: ModelPrices {
                input: Some(6.0),
                output: Some(22.5),
                ..ModelPrices::default()
            },
        }];
        let cost = |entry: &PriceEntry, kind: &str, cache_read| {
            let tokens = TokenParts {
                cache_read,
                ..TokenParts::default()
            };
            price_of(entry, kind).map(|price| price.cost(tokens))
        };
        assert_eq!(cost(&large, "anthropic", 100_000), Some(30_000));
        assert_eq!(cost(&large, "anthropic", 300_000), Some(180_000));
        assert_eq!(cost(&large, "openai", 100_000), Some(300_000));
        let own = entry(3.0, 15.0, Some(1.5));
        assert_eq!(cost(&own, "anthropic", 100_000), Some(150_000));
        let unpriced = PriceEntry::default();
        assert_eq!(cost(&unpriced, "openai", 9), None);
        assert_eq!(cost(&unpriced, "scripted", 9), Some(0));
        let free = PriceEntry {
            is_free: true,
            ..PriceEntry::default()
        };
        assert_eq!(cost(&free, "openai", 9), Some(0));
    }
}
