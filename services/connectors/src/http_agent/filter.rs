//! jq filters of a configuration, bounded: a filter cannot loop without end, nest without end, or grow without end.
//!
//! A filter may call the names of [`grammar`] alone and defines none. Each step of it spends of a [`FilterBudget`], by the size
//! of its value. Budgets, the time of a run and the number of its values are bounded, and so is the text of a filter.

mod budget;
mod functions;
mod grammar;
mod value;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use jaq_core::load::parse::{Def, Term};
use jaq_core::load::{self, Arena, File, Lexer, Loader, Parser};
use jaq_core::{Ctx, DataT, Vars};
use jaq_json::Val;
use serde_json::Value;

use crate::http_agent::filter::budget::FilterBudget;
use crate::upstream::results::cut;

/// Bytes of a filter's text.
const TEXT_BYTES: usize = 4 * 1024;
/// The stack on which texts are parsed: the parser recurses.
const PARSER_STACK: usize = 32 * 1024 * 1024;
/// Values of one run.
const MOST_VALUES: usize = 1_000;
/// Bytes of an error of a run.
const ERROR_BYTES: usize = 200;
/// The filter's name, which no filter can call.
const NAME: &str = "runnel_filter";
const MAIN: &str = "runnel_filter($event)";

/// Compiled filters that are kept: the runs of an agent have the same ones.
const MOST_KEPT: usize = 256;
static KEPT: Mutex<VecDeque<(String, Filter)>> = Mutex::new(VecDeque::new());

/// A compiled filter. Beside its input it knows `$event`.
#[derive(Clone)]
pub(super) struct Filter(Arc<jaq_core::Filter<Jq>>);

/// The data of a filter's run.
pub(super) struct Jq;

impl DataT for Jq {
    type V<'a> = Val;
    type Data<'a> = &'a FilterBudget<'a>;
}

/// The fault of a filter's text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FilterFault {
    /// The byte at which the fault is, where it is known.
    position: Option<usize>,
    text: String,
}

impl FilterFault {
    fn at(code: &str, part: &str, text: impl Into<String>) -> Self {
        let range = code.as_bytes().as_ptr_range();
        let is_within = range.contains(&part.as_ptr()) || range.end == part.as_ptr();
        Self {
            position: is_within.then(|| load::span(code, part).start),
            text: text.into(),
        }
    }

    fn of(text: impl Into<String>) -> Self {
        Self {
            position: None,
            text: text.into(),
        }
    }
}

impl std::fmt::Display for FilterFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.position {
            Some(position) => write!(f, "at byte {position}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

impl Filter {
    /// Compiles a text.
    pub(super) fn compile(code: &str) -> Result<Self, FilterFault> {
        if code.len() > TEXT_BYTES {
            return Err(FilterFault::of(format!(
                "is longer than {TEXT_BYTES} bytes"
            )));
        }
        let kept = || KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, filter)) = kept().iter().find(|(text, _)| text == code) {
            return Ok(filter.clone());
        }
        let compiled = thread::scope(|scope| {
            let builder = thread::Builder::new().stack_size(PARSER_STACK);
            let thread = builder.spawn_scoped(scope, || compile(code));
            thread.ok()?.join().ok()
        });
        let none = || FilterFault::of("cannot be compiled now: try again");
        let filter = Self(Arc::new(compiled.ok_or_else(none)??));
        let mut kept = kept();
        kept.truncate(MOST_KEPT - 1);
        kept.push_front((code.to_owned(), filter.clone()));
        Ok(filter)
    }

    /// The values for one input. `event`: the value of `$event`.
    pub(super) fn run(&self, input: &Value, event: Option<&str>) -> Result<Vec<Value>, String> {
        let budget = FilterBudget::new(&self.0.lut, input);
        let event = event.map_or(Val::Null, |event| Val::from(event.to_owned()));
        let context = Ctx::<Jq>::new(&budget, Vars::new([event]));
        let mut values = Vec::new();
        for value in self.0.id.run((context, value::of(input))) {
            let value = value.map_err(|exception| match exception.get_err() {
                Ok(error) => cut(&error.to_string(), ERROR_BYTES),
                Err(_) => "it takes more than its steps, its time or its size".to_owned(),
            })?;
            if values.len() == MOST_VALUES {
                return Err(format!("it gives more than {MOST_VALUES} values"));
            }
            values.push(value::from(&value));
        }
        Ok(values)
    }
}

fn compile(code: &str) -> Result<jaq_core::Filter<Jq>, FilterFault> {
    let term = grammar::checked(code, parse(code)?)?;
    let filter = Def {
        name: NAME,
        args: vec!["$event"],
        body: term,
    };
    let arena = Arena::default();
    let definitions = functions::definitions().chain([filter]);
    let file = File {
        code: MAIN,
        path: (),
    };
    let modules = Loader::new(definitions).load(&arena, file);
    let modules = modules.map_err(|_| FilterFault::of("cannot be loaded"))?;
    let compiler = jaq_core::Compiler::default()
        .with_funs(functions::natives())
        .with_global_vars(["$event"]);
    compiler.compile(modules).map_err(|errors| {
        let first = errors.iter().flat_map(|(_, errors)| errors).next();
        first.map_or_else(
            || FilterFault::of("cannot be compiled"),
            |(name, kind)| {
                FilterFault::at(code, name, format!("there is no {} {name}", kind.as_str()))
            },
        )
    })
}

fn parse(code: &str) -> Result<Term<&str>, FilterFault> {
    let tokens = Lexer::new(code).lex().map_err(|errors| {
        let first = errors.into_iter().next();
        first.map_or_else(
            || FilterFault::of("cannot be read"),
            |(expected, found)| {
                FilterFault::at(code, found, format!("expected {}", expected.as_str()))
            },
        )
    })?;
    let parsed = Parser::new(&tokens).parse(Parser::term);
    parsed.map_err(|errors| {
        let first = errors.into_iter().next();
        first.map_or_else(
            || FilterFault::of("cannot be read"),
            |(expected, found)| {
                let place = found.map_or(&code[code.len()..], |token| token.0);
                FilterFault::at(code, place, format!("expected {}", expected.as_str()))
            },
        )
    })
}

#[cfg(test)]
mod tests;
