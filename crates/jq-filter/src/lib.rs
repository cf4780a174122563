//! jq filters of a configuration, with bounds on loops, depth and size.
//!
//! A filter may call only the names of [`grammar`] and cannot define any. Each step spends units of a [`FilterBudget`]
//! by the size of its value. A run has limits of units, time and number of values; a filter's text has a limit of
//! bytes.

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

use crate::budget::FilterBudget;

/// Maximum bytes of a filter's text.
const TEXT_BYTES: usize = 4 * 1024;
/// Stack size in bytes of the parser thread: the parser recurses.
const PARSER_STACK: usize = 32 * 1024 * 1024;
/// Maximum values of one run.
const MAX_VALUES: usize = 1_000;
/// Maximum bytes of a run's error.
const ERROR_BYTES: usize = 200;
/// The name of the filter's definition. Filters cannot call it.
const NAME: &str = "runnel_filter";
const MAIN: &str = "runnel_filter($event)";

/// Maximum compiled filters in the cache. All runs of an agent use the same ones.
const MAX_CACHED: usize = 256;
static FILTER_CACHE: Mutex<VecDeque<(String, Filter)>> = Mutex::new(VecDeque::new());

/// A compiled filter. Next to its input it has the variable `$event`.
#[derive(Clone)]
pub struct Filter(Arc<jaq_core::Filter<Jq>>);

/// The context type of a filter's run.
pub(crate) struct Jq;

impl DataT for Jq {
    type V<'a> = Val;
    type Data<'a> = &'a FilterBudget<'a>;
}

/// A fault in a filter's text.
#[derive(Debug, PartialEq, Eq)]
pub struct FilterFault {
    /// Offset of the fault in bytes, if it is known.
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
    /// Compiles a text, or takes the filter from the cache.
    pub fn compile(code: &str) -> Result<Self, FilterFault> {
        if code.len() > TEXT_BYTES {
            return Err(FilterFault::of(format!(
                "is longer than {TEXT_BYTES} bytes"
            )));
        }
        // A panic cannot leave the queue half changed, so a poisoned lock is usable.
        let cache = || FILTER_CACHE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, filter)) = cache().iter().find(|(text, _)| text == code) {
            return Ok(filter.clone());
        }
        // A recursive parser would overflow a worker's stack with a deeply nested text.
        let compiled = thread::scope(|scope| {
            let builder = thread::Builder::new().stack_size(PARSER_STACK);
            let thread = builder.spawn_scoped(scope, || compile(code));
            // `join` also catches a panic of the parser.
            thread.ok()?.join().ok()
        });
        let none = || FilterFault::of("cannot be compiled now: try again");
        let filter = Self(Arc::new(compiled.ok_or_else(none)??));
        // Lock again only now: compilation must not block other runs.
        let mut cache = cache();
        cache.truncate(MAX_CACHED - 1);
        cache.push_front((code.to_owned(), filter.clone()));
        Ok(filter)
    }

    /// The values for one input. `event` is the value of `$event`.
    pub fn run(&self, input: &Value, event: Option<&str>) -> Result<Vec<Value>, String> {
        let budget = FilterBudget::new(&self.0.lut, input);
        let event = event.map_or(Val::Null, |event| Val::from(event.to_owned()));
        let context = Ctx::<Jq>::new(&budget, Vars::new([event]));
        let mut values = Vec::new();
        for value in self.0.id.run((context, value::of(input))) {
            let value = value.map_err(|exception| match exception.get_err() {
                Ok(error) => cut(&error.to_string()),
                // Only the budget raises this exception.
                Err(_) => "it takes more than its steps, its time or its size".to_owned(),
            })?;
            if values.len() == MAX_VALUES {
                return Err(format!("it gives more than {MAX_VALUES} values"));
            }
            values.push(value::from(&value));
        }
        Ok(values)
    }
}

/// Cuts the text of an error, between characters.
fn cut(text: &str) -> String {
    if text.len() <= ERROR_BYTES {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(ERROR_BYTES - '…'.len_utf8());
    format!("{}…", &text[..end])
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
                let position = found.map_or(&code[code.len()..], |token| token.0);
                FilterFault::at(code, position, format!("expected {}", expected.as_str()))
            },
        )
    })
}

#[cfg(test)]
mod tests;
