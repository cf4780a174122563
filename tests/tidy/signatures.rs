//! Parameters, by rule 3 of STYLE.md: no `bool` in public functions, no tuple that only saves an argument.

use std::collections::BTreeMap;

use crate::words::rust::{ParameterKind, parameters};
use crate::words::{crate_of, product_lines};
use crate::{assert_none, rust_files};

/// Crates with such parameters, and their ceilings. A crate that falls below its ceiling lowers it.
const CEILINGS: [(&str, ParameterKind, usize); 8] = [
    ("crates/domain", ParameterKind::RestrictedBool, 7),
    ("crates/llm-formats", ParameterKind::RestrictedBool, 2),
    ("crates/runs", ParameterKind::RestrictedBool, 1),
    ("crates/tools", ParameterKind::RestrictedBool, 1),
    ("services/connectors", ParameterKind::RestrictedBool, 1),
    ("services/gateway", ParameterKind::RestrictedBool, 1),
    ("services/harness", ParameterKind::RestrictedBool, 3),
    ("services/protocol-agent", ParameterKind::RestrictedBool, 1),
];

#[test]
fn parameters_are_named_values() {
    let mut found: BTreeMap<(String, ParameterKind), Vec<String>> = BTreeMap::new();
    for file in rust_files() {
        let product = product_lines(&file);
        if product == 0 {
            continue;
        }
        for parameter in parameters(&file.text) {
            if parameter.line <= product {
                let position = format!("{}:{} {}", file.path, parameter.line, parameter.function);
                let key = (crate_of(&file.path), parameter.kind);
                found.entry(key).or_default().push(position);
            }
        }
    }
    let mut faults = Vec::new();
    for (name, kind, ceiling) in CEILINGS {
        let positions = found.remove(&(name.to_owned(), kind)).unwrap_or_default();
        if positions.len() < ceiling {
            let count = positions.len();
            faults.push(format!("{name}: lower the ceiling of {kind:?} to {count}"));
        } else if positions.len() > ceiling {
            faults.push(format!(
                "{name}: {kind:?}, at most {ceiling}: {positions:?}"
            ));
        }
    }
    let rest = found.into_iter();
    faults.extend(rest.map(|((name, kind), positions)| format!("{name}: {kind:?}: {positions:?}")));
    assert_none(faults);
}

#[test]
fn finds_bool_and_tuple_parameters() {
    let code = "pub fn a(b: bool) {}\nfn c(d: bool, (e, f): (u8, u8)) {}\n\
        impl A { pub fn g(&self, h: (u8, u8), i: ()) {} }\nimpl From<(u8, u8)> for A { fn from(h: (u8, u8)) {} }\n\
        pub trait T { fn j(k: bool); }\ntrait U { fn l(m: bool); }\npub(crate) fn n(o: Option<bool>, p: bool) {}\n";
    let found: Vec<_> = parameters(code)
        .into_iter()
        .map(|parameter| (parameter.line, parameter.kind))
        .collect();
    let expected = [
        (1, ParameterKind::PublicBool),
        (2, ParameterKind::Tuple),
        (3, ParameterKind::Tuple),
        (5, ParameterKind::PublicBool),
        (7, ParameterKind::RestrictedBool),
    ];
    assert_eq!(found, expected);
}
