//! Routes and fallbacks of `[[models]]`.

use std::time::Duration;

use super::models::ModelEntry;
use super::table::{Reported, Table, integer, name, seconds};

/// Maximum models in `route`, and in `fallback`.
const MAX_MODELS: usize = 16;
const MAX_WEIGHT: u64 = 1_000_000;
/// Keys of a model with a provider. A route takes them from its candidates.
const OF_CANDIDATES: [&str; 22] = [
    "upstream_model",
    "context_window_tokens",
    "max_output_tokens",
    "thinking",
    "vocabulary",
    "token_margin",
    "embedding_batch",
    "input_price",
    "output_price",
    "cache_read_price",
    "cache_write_price",
    "cache_write_1h_price",
    "reasoning_price",
    "price_tiers",
    "unpriced",
    "reserve",
    "input_modalities",
    "concurrency",
    "rate",
    "burst",
    "tokens_per_minute",
    "queue_seconds",
];

/// A model of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteEntry {
    pub model: String,
    /// Share of the conversations. 0: none.
    pub weight: u64,
}

/// Models that answer for an entry of `[[models]]`.
pub(super) struct Candidates {
    pub(super) route: Vec<RouteEntry>,
    pub(super) fallback: Vec<String>,
    pub(super) first_byte: Option<Duration>,
}

impl RouteEntry {
    fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let model = table.required("model", name);
        let weight = table.optional("weight", integer(0..=MAX_WEIGHT));
        table.close()?;
        Ok(Self {
            model: model?,
            weight: weight?.unwrap_or(1),
        })
    }
}

impl Candidates {
    pub(super) fn read(
        table: &mut Table<'_>,
        provider: &Result<Option<String>, Reported>,
    ) -> Result<Self, Reported> {
        let route = table.items_if_any("route", |pointer, value, faults| {
            RouteEntry::read(Table::open(pointer, value, faults)?)
        });
        let fallback = table.items("fallback", |pointer, value, faults| {
            name(value).map_err(|message| {
                faults.push(super::fault::ConfigFault::new(pointer, message));
                Reported
            })
        });
        let first_byte = table.optional("first_byte_seconds", seconds(0.05..=3600.0));
        let (route, fallback, first_byte) = (route?, fallback?, first_byte?);
        match (&route, provider) {
            (_, Err(Reported)) => return Err(Reported),
            (None, Ok(None)) => {
                return Err(table.fault("provider", "is required, unless route is set"));
            }
            (Some(_), Ok(Some(_))) => {
                let message = "must be absent with route: its models have providers";
                return Err(table.fault("provider", message));
            }
            (Some(_), Ok(None)) => {
                table.refuse(
                    &OF_CANDIDATES,
                    "has no effect on a route; set it at its models",
                )?;
            }
            (None, Ok(Some(_))) => {}
        }
        if let Some(route) = &route {
            let has_weight = route.iter().any(|candidate| candidate.weight > 0);
            table.demand("route", has_weight, "needs a model with a weight above 0")?;
        }
        let route = route.unwrap_or_default();
        for (key, count) in [("route", route.len()), ("fallback", fallback.len())] {
            table.demand(key, count <= MAX_MODELS, "must be at most 16 models")?;
        }
        let has_next = route.len() > 1 || !fallback.is_empty();
        let message = "has no effect without a second model in route or fallback";
        table.demand(
            "first_byte_seconds",
            first_byte.is_none() || has_next,
            message,
        )?;
        Ok(Self {
            route,
            fallback,
            first_byte,
        })
    }
}

/// Checks the models that routes and fallbacks name. A candidate has a provider, so no route has a cycle.
pub(super) fn check_routes(
    models: &Result<Vec<ModelEntry>, Reported>,
    table: &mut Table<'_>,
) -> Result<(), Reported> {
    let Ok(models) = models else {
        return Err(Reported);
    };
    let mut result = Ok(());
    for (index, entry) in models.iter().enumerate() {
        let route = entry.route.iter().enumerate();
        let route = route.map(|(n, one)| (format!("route[{n}].model"), &one.model));
        let fallback = entry.fallback.iter().enumerate();
        let fallback = fallback.map(|(n, model)| (format!("fallback[{n}]"), model));
        let mut seen: Vec<&str> = Vec::new();
        for (key, model) in route.chain(fallback) {
            let fault = if seen.contains(&model.as_str()) {
                Some("is used twice".to_owned())
            } else {
                fault_of(entry, model, models)
            };
            if let Some(message) = fault {
                result = Err(table.fault(&format!("models[{index}].{key}"), message));
            }
            seen.push(model);
        }
    }
    result
}

/// Fault of a candidate of an entry.
fn fault_of(entry: &ModelEntry, candidate: &str, models: &[ModelEntry]) -> Option<String> {
    if candidate == entry.model_id {
        return Some("must be another model than the one that lists it".to_owned());
    }
    let Some(found) = models.iter().find(|one| one.model_id == candidate) else {
        return Some("names no model_id of [[models]]".to_owned());
    };
    if found.provider.is_none() {
        return Some("names a route; list its models instead".to_owned());
    }
    if found.model_type != entry.model_type {
        let message = format!(
            "must be of the model_type {}, as the model that lists it",
            entry.model_type
        );
        return Some(message);
    }
    let lacks = |operation: &&String| !found.operations.contains(operation);
    let lacking = entry.operations.iter().find(lacks)?;
    Some(format!(
        "has no operation {lacking}, which the model that lists it has; set operations of either"
    ))
}

impl ModelEntry {
    /// Entries of the models that answer for this one, itself included.
    pub fn candidates<'a>(&'a self, models: &'a [Self]) -> impl Iterator<Item = &'a Self> {
        let is_named = |one: &&Self| {
            one.model_id == self.model_id
                || self.fallback.contains(&one.model_id)
                || self.route.iter().any(|entry| entry.model == one.model_id)
        };
        let with_provider = models.iter().filter(|one| one.provider.is_some());
        with_provider.filter(move |one| is_named(one))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn faults(models: &Value) -> Vec<String> {
        let mut faults = Vec::new();
        let mut table = Table::open(String::new(), json!({"models": models}), &mut faults).unwrap();
        let models = table.tables("models", "model_id", ModelEntry::read);
        let checked = check_routes(&models, &mut table);
        assert_eq!(checked.is_ok(), faults.is_empty(), "{faults:?}");
        faults.into_iter().map(|fault| fault.pointer).collect()
    }

    /// Faults of the third model, next to two with a provider.
    fn of(entry: &Value) -> Vec<String> {
        let model = |id: &str| json!({"model_id": id, "provider": "p"});
        let mut reader = model("reader");
        reader["operations"] = json!(["rerank"]);
        faults(&json!([model("a"), reader, entry]))
    }

    #[test]
    fn rejects_routes_without_usable_models() {
        let route = |candidates: Value| json!({"model_id": "r", "route": candidates});
        let a = json!({"model": "a", "weight": 2});
        for (entry, expected) in [
            (route(json!([a])), None),
            (
                json!({"model_id": "r", "route": [a], "first_byte_seconds": 2}),
                Some("first_byte_seconds"),
            ),
            (route(json!([])), Some("route")),
            (route(json!([{"model": "a", "weight": 0}])), Some("route")),
            (
                route(json!([{"model": "a", "weight": -1}])),
                Some("route[0].weight"),
            ),
            (
                route(json!([{"model": "a", "share": 1}])),
                Some("route[0].share"),
            ),
            (
                route(json!([a, {"model": "unknown"}])),
                Some("route[1].model"),
            ),
            (route(json!([a, a])), Some("route[1].model")),
            (route(json!([{"model": "r"}])), Some("route[0].model")),
            (route(json!([{"model": "reader"}])), Some("route[0].model")),
            (
                json!({"model_id": "r", "route": [a], "fallback": ["a"]}),
                Some("fallback[0]"),
            ),
            (
                json!({"model_id": "r", "route": [a], "fallback": [1]}),
                Some("fallback[0]"),
            ),
            (
                json!({"model_id": "r", "route": [a], "provider": "p"}),
                Some("provider"),
            ),
            (
                json!({"model_id": "r", "route": [a], "input_price": 1}),
                Some("input_price"),
            ),
            (json!({"model_id": "r"}), Some("provider")),
            (
                json!({"model_id": "r", "provider": "p", "fallback": ["a"]}),
                None,
            ),
            (
                json!({"model_id": "r", "provider": "p", "fallback": ["r"]}),
                Some("fallback[0]"),
            ),
        ] {
            let expected: Vec<_> = expected
                .map(|key| format!("models[2].{key}"))
                .into_iter()
                .collect();
            assert_eq!(of(&entry), expected, "{entry}");
        }
    }

    #[test]
    fn rejects_routes_of_routes_and_so_cycles() {
        let route = |id: &str, model: &str| json!({"model_id": id, "route": [{"model": model}]});
        let found = faults(&json!([route("r", "s"), route("s", "r")]));
        assert_eq!(
            found,
            ["models[0].route[0].model", "models[1].route[0].model"]
        );
    }
}
