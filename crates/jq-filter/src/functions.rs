//! The functions of filters: those of jq that read a single value.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jaq_core::box_iter::box_once;
use jaq_core::load::parse::Def;
use jaq_core::native::{Fun, bome, run, unary, v};
use jaq_core::{Error, Exn, ValR};
use jaq_json::{Num, Val};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::{Jq, grammar, value};

/// The function that spends the units of a step.
pub(crate) const STEP: &str = "step";
/// `-` and `*`, for numbers only.
pub(crate) const MINUS: &str = "minus";
pub(crate) const TIMES: &str = "times";

/// Definitions that those of [`grammar::CALLS`] use.
const NEEDED: &[&str] = &[
    "isboolean",
    "isnumber",
    "isstring",
    "isarray",
    "isobject",
    "totype",
    "recurse",
];
/// Native functions that this module replaces.
const OWN: &[&str] = &["contains", "fromjson"];

/// Characters that `@uri` does not escape.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// Definitions of jq's library that filters may use.
static DEFINITIONS: LazyLock<Vec<Def<&'static str>>> = LazyLock::new(|| {
    let all = jaq_core::defs()
        .chain(jaq_std::defs())
        .chain(jaq_json::defs());
    let is_offered = |name: &&str| grammar::CALLS.contains(name) || NEEDED.contains(name);
    all.filter(|def| is_offered(&def.name) && !needs_patterns(def))
        .collect()
});

/// The definitions for the compiler of one filter.
pub(crate) fn definitions<'s>() -> impl Iterator<Item = Def<&'s str>> {
    DEFINITIONS.iter().cloned()
}

/// True for `split` with two arguments, which takes a regular expression.
fn needs_patterns(definition: &Def<&str>) -> bool {
    definition.name == "split" && definition.args.len() > 1
}

/// The native functions. The grammar limits those that a filter can call.
pub(crate) fn natives() -> impl Iterator<Item = Fun<Jq>> {
    let library = jaq_core::funs::<Jq>()
        .chain(jaq_std::base_funs())
        .chain(jaq_json::funs())
        .filter(|(name, _, _)| !OWN.contains(name));
    library.chain(own())
}

fn own() -> impl Iterator<Item = Fun<Jq>> {
    [
        run::<Jq>((STEP, v(0), |(context, value)| {
            // `try` cannot catch a halt, so a filter cannot survive its budget.
            box_once(if context.data().spend(&value) {
                Ok(value)
            } else {
                Err(Exn::halt(1))
            })
        })),
        run::<Jq>((MINUS, v(2), |mut cv| {
            let (right, left) = (cv.0.pop_var(), cv.0.pop_var());
            bome(numbers(left, right, "-", |left, right| left - right))
        })),
        run::<Jq>((TIMES, v(2), |mut cv| {
            let (right, left) = (cv.0.pop_var(), cv.0.pop_var());
            bome(numbers(left, right, "*", |left, right| {
                Ok(times(&left, &right))
            }))
        })),
        run::<Jq>(("contains", v(1), |cv| {
            unary(cv, |text, part| match (&text, &part) {
                (Val::TStr(text), Val::TStr(part)) => {
                    let text = String::from_utf8_lossy(text);
                    Ok(text.contains(&*String::from_utf8_lossy(part)).into())
                }
                _ => Err(Error::str("contains takes texts: use any(.[]; . == $x)")),
            })
        })),
        run::<Jq>(("fromjson", v(0), |cv| {
            let read = text_of(&cv.1).and_then(|text| {
                let read = serde_json::from_str(&text);
                read.map_err(|_| Error::str("the text is no JSON"))
            });
            bome(read.map(|read| value::of(&read)))
        })),
        run::<Jq>(("encode_uri", v(0), |cv| {
            let encoded = text_of(&cv.1);
            bome(encoded.map(|text| Val::from(utf8_percent_encode(&text, PLAIN).to_string())))
        })),
        run::<Jq>(("encode_base64", v(0), |cv| {
            bome(text_of(&cv.1).map(|text| Val::from(STANDARD.encode(text))))
        })),
    ]
    .into_iter()
}

fn text_of(value: &Val) -> Result<String, Error<Val>> {
    match value {
        Val::TStr(text) => Ok(String::from_utf8_lossy(text).into_owned()),
        _ => Err(Error::str("a text is needed")),
    }
}

fn numbers(left: Val, right: Val, sign: &str, calculate: fn(Val, Val) -> ValR<Val>) -> ValR<Val> {
    match (&left, &right) {
        (Val::Num(_), Val::Num(_)) => calculate(left, right),
        _ => Err(Error::str(format!("{sign} takes numbers"))),
    }
}

/// A product of bounded size: a float unless it fits a machine integer.
fn times(left: &Val, right: &Val) -> Val {
    let integer = match (left, right) {
        (Val::Num(Num::Int(left)), Val::Num(Num::Int(right))) => left.checked_mul(*right),
        _ => None,
    };
    match integer {
        Some(product) => Val::from(product),
        None => Val::from(float_of(left) * float_of(right)),
    }
}

fn float_of(number: &Val) -> f64 {
    number.to_string().parse().unwrap_or(f64::NAN)
}
