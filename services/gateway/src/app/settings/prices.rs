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
        let kind = kind_of(config, &entry.provider)?;
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
        let kind = kind_of(config, &entry.provider)?;
        let is_unpriced = price_of(&entry.price, kind).is_none();
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
