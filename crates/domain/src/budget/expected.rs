//! Expected use of a streaming model call, from the last calls of its agent with the same model.
//!
//! Upper bounds of parallel calls fill a budget of which nothing is spent. A stream can be stopped, so it reserves what
//! it will probably use, and reserves more while it runs.

use std::collections::VecDeque;

use super::Amount;

/// Calls that the expectation covers.
const WINDOW: usize = 32;
/// Least expected completion: a short answer says little about the next one.
const LEAST_COMPLETION: u64 = 1024;
/// Scale of a price per token, so that a fraction of a millionth does not vanish.
const SCALE: u64 = 1000;

/// Use of a call that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastCall {
    pub prompt_tokens: u64,
    /// Cost of the prompt, of which the cache of the provider may have served a part.
    pub prompt_cost_micros: u64,
    pub completion_tokens: u64,
}

/// Bounds of a call by its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallBound {
    pub prompt_tokens: u64,
    /// Cost of the prompt if the cache serves all of it.
    pub cached_cost_micros: u64,
    pub max_completion_tokens: u64,
}

/// Expected use of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedCall {
    pub prompt_cost_micros: u64,
    pub completion_tokens: u64,
}

/// The last calls of one agent with one model.
#[derive(Clone, Debug, Default)]
pub struct RecentCalls(VecDeque<PastCall>);

impl RecentCalls {
    /// Adds a call, and forgets the oldest one beyond the window.
    pub fn add(&mut self, call: PastCall) {
        if self.0.len() == WINDOW {
            self.0.pop_front();
        }
        self.0.push_back(call);
    }

    /// The 90th percentile of these calls, within the bound. `None`: there is no call to learn from.
    pub fn expected(&self, bound: CallBound) -> Option<ExpectedCall> {
        let completion = percentile(self.0.iter().map(|call| call.completion_tokens))?;
        let price = |call: &PastCall| {
            let cost = call.prompt_cost_micros.saturating_mul(SCALE);
            cost / call.prompt_tokens.max(1)
        };
        let price = percentile(self.0.iter().map(price))?;
        let prompt = price.saturating_mul(bound.prompt_tokens) / SCALE;
        Some(ExpectedCall {
            prompt_cost_micros: prompt.max(bound.cached_cost_micros),
            completion_tokens: completion
                .max(LEAST_COMPLETION)
                .min(bound.max_completion_tokens),
        })
    }
}

fn percentile(values: impl Iterator<Item = u64>) -> Option<u64> {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable();
    let index = (values.len() * 9).div_ceil(10).checked_sub(1)?;
    values.get(index).copied()
}

/// Additional reservation of a running call, with `step` in reserve. `None`: its reservation suffices.
pub fn growth(running: Amount, reserved: Amount, step: Amount) -> Option<Amount> {
    let suffices = running.tokens <= reserved.tokens && running.cost_micros <= reserved.cost_micros;
    let more = |running: u64, step: u64, reserved: u64| {
        running.saturating_add(step).saturating_sub(reserved)
    };
    (!suffices).then(|| Amount {
        tokens: more(running.tokens, step.tokens, reserved.tokens),
        cost_micros: more(running.cost_micros, step.cost_micros, reserved.cost_micros),
        ..Amount::default()
    })
}

#[cfg(test)]
mod simulation;

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: CallBound = CallBound {
        prompt_tokens: 10_000,
        cached_cost_micros: 3_000,
        max_completion_tokens: 32_000,
    };

    #[test]
    fn expects_the_ninetieth_percentile_of_recent_calls() {
        let mut recent = RecentCalls::default();
        assert_eq!(recent.expected(BOUND), None);
        let call = |completion_tokens, prompt_cost_micros| PastCall {
            prompt_tokens: 1_000,
            prompt_cost_micros,
            completion_tokens,
        };
        recent.add(call(10, 300));
        let least = ExpectedCall {
            prompt_cost_micros: 3_000,
            completion_tokens: LEAST_COMPLETION,
        };
        assert_eq!(recent.expected(BOUND), Some(least));
        for n in 0..32 {
            recent.add(call(1_000 + 100 * n, 500 + n));
        }
        // The 29th of 32: the first call is forgotten.
        let expected = ExpectedCall {
            prompt_cost_micros: 5_280,
            completion_tokens: 3_800,
        };
        assert_eq!(recent.expected(BOUND), Some(expected));
        let short = CallBound {
            max_completion_tokens: 50,
            ..BOUND
        };
        let short = recent.expected(short).unwrap();
        assert_eq!(short.completion_tokens, 50);
    }

    #[test]
    fn grows_only_beyond_the_reservation() {
        let of = |tokens, cost_micros| Amount {
            tokens,
            cost_micros,
            ..Amount::default()
        };
        let step = of(100, 10);
        assert_eq!(growth(of(5, 9), of(5, 9), step), None);
        assert_eq!(growth(of(6, 9), of(5, 9), step), Some(of(101, 10)));
        assert_eq!(growth(of(1, 12), of(500, 9), step), Some(of(0, 13)));
    }
}
