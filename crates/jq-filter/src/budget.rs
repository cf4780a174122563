//! The budget of one run of a filter.

use std::cell::Cell;
use std::time::{Duration, Instant};

use jaq_core::Lut;
use jaq_core::data::HasLut;
use jaq_json::{Num, Val};
use serde_json::Value;

use crate::{Jq, value};

/// Units of a run, in addition to those for its input.
const UNITS: usize = if cfg!(test) { 400_000 } else { 4_000_000 };
/// Units of one step, in addition to those for its value.
const STEP: usize = 8;
/// Bytes of text per unit.
const BYTES: usize = 16;
/// Maximum time of a run. On most machines the units end first.
const TIME: Duration = Duration::from_secs(2);
/// Maximum depth of a value.
const MAX_LEVELS: usize = 200;
/// Steps that may process the complete input.
const INPUT_STEPS: usize = 8;

/// The remaining units. At 0, every further step fails.
pub(crate) struct FilterBudget<'a> {
    lut: &'a Lut<Jq>,
    left: Cell<usize>,
    until: Instant,
}

impl<'a> FilterBudget<'a> {
    pub(crate) fn new(lut: &'a Lut<Jq>, input: &Value) -> Self {
        let left = UNITS + INPUT_STEPS * value::units(input, BYTES);
        Self {
            lut,
            left: Cell::new(left),
            until: Instant::now() + TIME,
        }
    }

    /// Spends the units of one step with that value. False if the budget is exhausted.
    pub(crate) fn spend(&self, value: &Val) -> bool {
        let left = self.left.get().checked_sub(STEP);
        let left = left.and_then(|left| after(value, MAX_LEVELS, left));
        let left = left.filter(|_| Instant::now() < self.until);
        // Zero stays zero, so that no later step can succeed.
        self.left.set(left.unwrap_or(0));
        left.is_some()
    }
}

impl<'a> HasLut<'a, Jq> for &'a FilterBudget<'a> {
    fn lut(&self) -> &'a Lut<Jq> {
        self.lut
    }
}

/// The units left after a value of at most `levels` levels.
fn after(value: &Val, levels: usize, left: usize) -> Option<usize> {
    let left = left.checked_sub(1)?;
    match value {
        Val::Null | Val::Bool(_) | Val::Num(Num::Int(_) | Num::Float(_)) => Some(left),
        Val::Num(number) => left.checked_sub(number.to_string().len() / BYTES),
        Val::BStr(text) | Val::TStr(text) => left.checked_sub(text.len() / BYTES),
        Val::Arr(items) => {
            let levels = levels.checked_sub(1)?;
            let mut items = items.iter();
            items.try_fold(left, |left, item| after(item, levels, left))
        }
        Val::Obj(members) => {
            let levels = levels.checked_sub(1)?;
            members.iter().try_fold(left, |left, (key, member)| {
                after(member, levels, after(key, levels, left)?)
            })
        }
    }
}
