//! Prices of `[[models]]`.

use super::models::number;
use super::table::{Reported, Table, integer, one_of};

/// The price of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PriceEntry {
    /// Prices of smaller prompts, or of all.
    pub base: ModelPrices,
    pub tiers: Vec<PriceTierEntry>,
    /// A model without a price costs nothing, instead of being refused under a budget of cost.
    pub is_free: bool,
}

/// Prices of a million tokens, in the operator's currency. `None`: derived, see `docs/models.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ModelPrices {
    pub input: Option<f64>,
    pub output: Option<f64>,
    pub cache_read: Option<f64>,
    pub cache_write_5m: Option<f64>,
    pub cache_write_1h: Option<f64>,
    pub reasoning: Option<f64>,
}

/// Prices of requests with a prompt above a size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PriceTierEntry {
    pub above_tokens: u64,
    pub prices: ModelPrices,
}

impl ModelPrices {
    fn read(table: &mut Table<'_>) -> Result<Self, Reported> {
        let mut price = |key| table.optional(key, number(0.0, 1e6));
        let (input, output) = (price("input_price"), price("output_price"));
        let cache_read = price("cache_read_price");
        let cache_write_5m = price("cache_write_price");
        let cache_write_1h = price("cache_write_1h_price");
        let reasoning = price("reasoning_price");
        let read = Self {
            input: input?,
            output: output?,
            cache_read: cache_read?,
            cache_write_5m: cache_write_5m?,
            cache_write_1h: cache_write_1h?,
            reasoning: reasoning?,
        };
        let of_input = [read.cache_read, read.cache_write_5m, read.cache_write_1h];
        if read.input.is_none() && of_input.iter().any(Option::is_some) {
            return Err(table.fault(
                "input_price",
                "is required together with prices of cached tokens",
            ));
        }
        if read.output.is_none() && read.reasoning.is_some() {
            return Err(table.fault("output_price", "is required together with reasoning_price"));
        }
        Ok(read)
    }

    /// True if the model has a price.
    pub fn is_some(&self) -> bool {
        self.input.is_some() || self.output.is_some()
    }
}

impl PriceTierEntry {
    fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let above_tokens = table.required("above_tokens", integer(1..=1_000_000_000));
        let prices = ModelPrices::read(&mut table);
        let complete = match &prices {
            Ok(prices) if prices.input.is_none() => {
                Err(table.fault("input_price", "is required in a tier"))
            }
            Ok(prices) if prices.output.is_none() => {
                Err(table.fault("output_price", "is required in a tier"))
            }
            _ => Ok(()),
        };
        table.close()?;
        complete?;
        Ok(Self {
            above_tokens: above_tokens?,
            prices: prices?,
        })
    }
}

impl PriceEntry {
    pub(super) fn read(table: &mut Table<'_>) -> Result<Self, Reported> {
        let base = ModelPrices::read(table);
        let tiers = table.items("price_tiers", |pointer, value, faults| {
            PriceTierEntry::read(Table::open(pointer, value, faults)?)
        });
        let unpriced = table.optional("unpriced", one_of(&["free"]));
        let (base, tiers) = (base?, tiers?);
        let is_free = unpriced?.is_some();
        let is_priced = base.is_some();
        table.demand(
            "unpriced",
            !(is_free && is_priced),
            "is for models without a price",
        )?;
        // A tier applies above a prompt size; smaller prompts have the base price.
        let has_base = base.input.is_some() && base.output.is_some();
        let message = "needs input_price and output_price, for smaller prompts";
        table.demand("price_tiers", tiers.is_empty() || has_base, message)?;
        let mut sizes: Vec<_> = tiers.iter().map(|tier| tier.above_tokens).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let message = "must have different above_tokens";
        table.demand("price_tiers", sizes.len() == tiers.len(), message)?;
        Ok(Self {
            base,
            tiers,
            is_free,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn faults(entry: Value) -> Vec<String> {
        let mut faults = Vec::new();
        let mut table = Table::open("m".to_owned(), entry, &mut faults).unwrap();
        let read = PriceEntry::read(&mut table).and(table.close());
        assert_eq!(read.is_ok(), faults.is_empty(), "{faults:?}");
        faults.into_iter().map(|fault| fault.pointer).collect()
    }

    #[test]
    fn rejects_prices_without_a_base() {
        let tier =
            |above: u64| json!({"above_tokens": above, "input_price": 6, "output_price": 22.5});
        for (entry, expected) in [
            (json!({}), None),
            (json!({"unpriced": "free"}), None),
            (
                json!({"input_price": 3, "output_price": 15, "cache_write_1h_price": 6, "price_tiers": [tier(200_000)]}),
                None,
            ),
            (json!({"cache_read_price": 0.3}), Some("m.input_price")),
            (
                json!({"input_price": 3, "reasoning_price": 9}),
                Some("m.output_price"),
            ),
            (json!({"input_price": -1}), Some("m.input_price")),
            (
                json!({"input_price": 3, "unpriced": "free"}),
                Some("m.unpriced"),
            ),
            (json!({"unpriced": "refuse"}), Some("m.unpriced")),
            (
                json!({"input_price": 3, "price_tiers": [tier(9)]}),
                Some("m.price_tiers"),
            ),
            (
                json!({"input_price": 3, "output_price": 15, "price_tiers": [{"above_tokens": 9, "input_price": 6}]}),
                Some("m.price_tiers[0].output_price"),
            ),
            (
                json!({"input_price": 3, "output_price": 15, "price_tiers": [tier(9), tier(9)]}),
                Some("m.price_tiers"),
            ),
        ] {
            let expected: Vec<_> = expected.into_iter().collect();
            assert_eq!(faults(entry.clone()), expected, "{entry}");
        }
    }
}
