//! Prices of models.

use std::sync::Arc;

use domain::usage::TokenParts;

/// Prices of a million tokens in the operator's currency, which equal millionths of it per token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenRates {
    pub input: f64,
    pub cache_read: f64,
    pub cache_write_5m: f64,
    pub cache_write_1h: f64,
    pub output: f64,
    pub reasoning: f64,
}

/// Rates of requests with a prompt above a size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PriceTier {
    /// Prompt tokens, cached ones included.
    pub above_tokens: u64,
    pub rates: TokenRates,
}

/// The price of a model. Cheap to clone. The default is free.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Price {
    base: TokenRates,
    /// By size, the smallest first.
    tiers: Arc<[PriceTier]>,
}

impl Price {
    /// A price with tiers in any order.
    pub fn new(base: TokenRates, mut tiers: Vec<PriceTier>) -> Self {
        tiers.sort_by_key(|tier| tier.above_tokens);
        Self {
            base,
            tiers: tiers.into(),
        }
    }

    /// Cost of these tokens, in millionths of the currency. The size of the prompt selects the rates of all tokens.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "prices and counts are far below what a double counts exactly"
    )]
    pub fn cost(&self, tokens: TokenParts) -> u64 {
        let prompt = tokens.prompt();
        // The largest tier that the prompt exceeds wins.
        let reached = |tier: &&PriceTier| prompt > tier.above_tokens;
        let tier = self.tiers.iter().rev().find(reached);
        let rates = tier.map_or(self.base, |tier| tier.rates);
        let by_part = [
            (tokens.input, rates.input),
            (tokens.cache_read, rates.cache_read),
            (tokens.cache_write_5m, rates.cache_write_5m),
            (tokens.cache_write_1h, rates.cache_write_1h),
            (tokens.output, rates.output),
            (tokens.reasoning, rates.reasoning),
        ];
        let cost: f64 = by_part
            .iter()
            .map(|(count, rate)| *count as f64 * rate)
            .sum();
        // A tenth of a price is not exact in binary, so a sum may exceed an integer by a tiny amount.
        ((cost * 1e3).round() / 1e3).ceil() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_size_selects_rates_of_all_tokens() {
        let at = |input: f64| TokenRates {
            input,
            cache_read: input / 10.0,
            cache_write_5m: input * 1.25,
            cache_write_1h: input * 2.0,
            output: input * 5.0,
            reasoning: input * 6.0,
        };
        let tier = |above_tokens, input| PriceTier {
            above_tokens,
            rates: at(input),
        };
        let price = Price::new(at(1.0), vec![tier(1000, 4.0), tier(100, 2.0)]);
        let tokens = |input| TokenParts {
            input,
            cache_read: 50,
            cache_write_5m: 4,
            cache_write_1h: 3,
            output: 2,
            reasoning: 1,
        };
        // 5 of the cache, 5 and 6 written to it, 10 and 6 of the answer.
        assert_eq!(price.cost(tokens(43)), 43 + 32);
        assert_eq!(price.cost(tokens(44)), 2 * (44 + 32));
        assert_eq!(price.cost(tokens(1000)), 4 * (1000 + 32));
        assert_eq!(Price::default().cost(tokens(9)), 0);
    }
}
