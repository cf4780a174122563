//! The subset of jq for filters. Terms that create values get a step that spends units.

use jaq_core::load::lex::StrPart;
use jaq_core::load::parse::{BinaryOp, Pattern, Term};
use jaq_core::ops::Math;
use jaq_core::path::{Part, Path};

use crate::{FilterFault, functions};

/// Names that a filter may call.
pub(crate) const CALLS: &[&str] = &[
    // Values and their kinds.
    "null",
    "true",
    "false",
    "not",
    "empty",
    "error",
    "type",
    "values",
    "nulls",
    "booleans",
    "numbers",
    "strings",
    "arrays",
    "objects",
    "iterables",
    "scalars",
    "select",
    // Members and items.
    "length",
    "keys",
    "keys_unsorted",
    "has",
    "map",
    "map_values",
    "to_entries",
    "from_entries",
    "with_entries",
    "getpath",
    "first",
    "last",
    "nth",
    "limit",
    "skip",
    "isempty",
    "any",
    "all",
    "add",
    "range",
    "reverse",
    "sort",
    "sort_by",
    "group_by",
    "unique",
    "unique_by",
    "min",
    "max",
    "min_by",
    "max_by",
    "flatten",
    // Numbers.
    "floor",
    "round",
    "ceil",
    "abs",
    "tonumber",
    // Texts.
    "tostring",
    "tojson",
    "fromjson",
    "split",
    "join",
    "contains",
    "startswith",
    "endswith",
    "ltrimstr",
    "rtrimstr",
    "trim",
    "ltrim",
    "rtrim",
    "ascii_downcase",
    "ascii_upcase",
    "utf8bytelength",
    "@text",
    "@json",
    "@uri",
    "@base64",
];
/// Maximum depth of a term.
const MAX_LEVELS: usize = 100;

/// Checks a term and adds a step after each part that creates a value. Fails for a term outside of the subset.
pub(crate) fn checked<'s>(
    code: &'s str,
    term: Term<&'s str>,
) -> Result<Term<&'s str>, FilterFault> {
    Checker { code }.term(term, MAX_LEVELS).map(step)
}

fn step(term: Term<&str>) -> Term<&str> {
    let step = Term::Call(functions::STEP, Vec::new());
    Term::BinOp(Box::new(term), BinaryOp::Pipe(None), Box::new(step))
}

struct Checker<'s> {
    code: &'s str,
}

type Checked<T> = Result<T, FilterFault>;

impl<'s> Checker<'s> {
    fn term(&self, term: Term<&'s str>, levels: usize) -> Checked<Term<&'s str>> {
        // The compiler and each run recurse by this depth.
        let levels = levels
            .checked_sub(1)
            .ok_or_else(|| FilterFault::of(format!("has more than {MAX_LEVELS} levels")))?;
        Ok(match term {
            Term::Id | Term::Num(_) | Term::Var(_) | Term::Break(_) | Term::Arr(None) => term,
            Term::Recurse => step(term),
            Term::Str(format, parts) => step(self.text(format, parts, levels)?),
            Term::Arr(Some(items)) => step(Term::Arr(Some(self.boxed(items, levels)?))),
            Term::Obj(members) => step(self.object(members, levels)?),
            Term::Neg(term) => Term::Neg(self.boxed(term, levels)?),
            Term::BinOp(left, operator, right) => self.operation(left, operator, right, levels)?,
            Term::Label(name, term) => Term::Label(name, self.boxed(term, levels)?),
            Term::Fold(name, items, pattern, terms) => {
                if !matches!(name, "reduce" | "foreach") {
                    return Err(self.refused(name));
                }
                let items = self.boxed(items, levels)?;
                let pattern = self.pattern(pattern, levels)?;
                step(Term::Fold(name, items, pattern, self.terms(terms, levels)?))
            }
            Term::TryCatch(term, catch) => {
                let catch = catch.map(|catch| self.boxed(catch, levels)).transpose()?;
                Term::TryCatch(self.boxed(term, levels)?, catch)
            }
            Term::IfThenElse(cases, otherwise) => self.cases(cases, otherwise, levels)?,
            Term::Def(definitions, _) => {
                // Definitions allow recursion, which the depth of a term does not bound.
                let name = definitions.first().map_or("def", |def| def.name);
                return Err(FilterFault::at(
                    self.code,
                    name,
                    "filters define no functions",
                ));
            }
            Term::Call(name, arguments) => {
                if !CALLS.contains(&name) {
                    return Err(self.refused(name));
                }
                step(Term::Call(name, self.terms(arguments, levels)?))
            }
            Term::Path(term, path) => {
                let term = self.boxed(term, levels)?;
                step(Term::Path(term, self.path(path, levels)?))
            }
        })
    }

    fn refused(&self, name: &str) -> FilterFault {
        let text = format!("{name} is not offered; offered are: {}", CALLS.join(", "));
        FilterFault::at(self.code, name, text)
    }

    #[expect(clippy::boxed_local, reason = "terms hold boxes")]
    fn boxed(&self, term: Box<Term<&'s str>>, levels: usize) -> Checked<Box<Term<&'s str>>> {
        self.term(*term, levels).map(Box::new)
    }

    fn terms(&self, terms: Vec<Term<&'s str>>, levels: usize) -> Checked<Vec<Term<&'s str>>> {
        terms
            .into_iter()
            .map(|term| self.term(term, levels))
            .collect()
    }

    fn text(
        &self,
        format: Option<&'s str>,
        parts: Vec<StrPart<&'s str, Term<&'s str>>>,
        levels: usize,
    ) -> Checked<Term<&'s str>> {
        if let Some(format) = format.filter(|format| !CALLS.contains(format)) {
            return Err(self.refused(format));
        }
        let part = |part| {
            Ok(match part {
                StrPart::Term(term) => StrPart::Term(self.term(term, levels)?),
                part => part,
            })
        };
        let parts = parts.into_iter().map(part).collect::<Checked<_>>()?;
        Ok(Term::Str(format, parts))
    }

    fn object(
        &self,
        members: Vec<(Term<&'s str>, Option<Term<&'s str>>)>,
        levels: usize,
    ) -> Checked<Term<&'s str>> {
        let member = |(key, value): (Term<&'s str>, Option<Term<&'s str>>)| {
            // The keys of `{a}` and `{$a}` must keep their shape, so wrap no step around them.
            let key = match key {
                Term::Str(format, parts) => self.text(format, parts, levels)?,
                key => self.term(key, levels)?,
            };
            let value = value.map(|value| self.term(value, levels)).transpose()?;
            Ok((key, value))
        };
        let members = members.into_iter().map(member).collect::<Checked<_>>()?;
        Ok(Term::Obj(members))
    }

    fn operation(
        &self,
        left: Box<Term<&'s str>>,
        operator: BinaryOp<&'s str>,
        right: Box<Term<&'s str>>,
        levels: usize,
    ) -> Checked<Term<&'s str>> {
        let (left, right) = (self.boxed(left, levels)?, self.boxed(right, levels)?);
        let operator = match operator {
            BinaryOp::Pipe(Some(pattern)) => BinaryOp::Pipe(Some(self.pattern(pattern, levels)?)),
            // The library subtracts arrays and multiplies texts, which can be slow or large.
            BinaryOp::Math(Math::Sub) => {
                return Ok(step(Term::Call(functions::MINUS, vec![*left, *right])));
            }
            BinaryOp::Math(Math::Mul) => {
                return Ok(step(Term::Call(functions::TIMES, vec![*left, *right])));
            }
            BinaryOp::Math(operator) => {
                return Ok(step(Term::BinOp(left, BinaryOp::Math(operator), right)));
            }
            BinaryOp::Assign | BinaryOp::Update | BinaryOp::UpdateMath(_) | BinaryOp::UpdateAlt => {
                return Err(FilterFault::of("assigns: write `. + {key: value}` instead"));
            }
            operator => operator,
        };
        Ok(Term::BinOp(left, operator, right))
    }

    fn cases(
        &self,
        cases: Vec<(Term<&'s str>, Term<&'s str>)>,
        otherwise: Option<Box<Term<&'s str>>>,
        levels: usize,
    ) -> Checked<Term<&'s str>> {
        let case =
            |(condition, term)| Ok((self.term(condition, levels)?, self.term(term, levels)?));
        let cases = cases.into_iter().map(case).collect::<Checked<_>>()?;
        let otherwise = otherwise.map(|term| self.boxed(term, levels)).transpose()?;
        Ok(Term::IfThenElse(cases, otherwise))
    }

    fn pattern(&self, pattern: Pattern<&'s str>, levels: usize) -> Checked<Pattern<&'s str>> {
        let levels = levels
            .checked_sub(1)
            .ok_or_else(|| FilterFault::of(format!("has more than {MAX_LEVELS} levels")))?;
        Ok(match pattern {
            Pattern::Var(name) => Pattern::Var(name),
            Pattern::Arr(items) => {
                let items = items.into_iter().map(|item| self.pattern(item, levels));
                Pattern::Arr(items.collect::<Checked<_>>()?)
            }
            Pattern::Obj(members) => {
                let members = members.into_iter().map(|(key, member)| {
                    Ok((self.term(key, levels)?, self.pattern(member, levels)?))
                });
                Pattern::Obj(members.collect::<Checked<_>>()?)
            }
        })
    }

    fn path(&self, path: Path<Term<&'s str>>, levels: usize) -> Checked<Path<Term<&'s str>>> {
        let bound =
            |bound: Option<Term<&'s str>>| bound.map(|bound| self.term(bound, levels)).transpose();
        let part = |(part, optional)| {
            let part = match part {
                Part::Index(index) => Part::Index(self.term(index, levels)?),
                Part::Range(from, to) => Part::Range(bound(from)?, bound(to)?),
            };
            Ok((part, optional))
        };
        let parts = path.0.into_iter().map(part).collect::<Checked<_>>()?;
        Ok(Path(parts))
    }
}
