//! Import cycles and method counts. Files of a cycle cannot be read or changed separately.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ra_ap_rustc_lexer::{FrontmatterAllowed, TokenKind, tokenize};

use crate::{assert_none, rust_files};

/// Crates with larger import cycles. An entry is removed with its cycles; none is added.
const EXCEPTED_CRATES: [&str; 1] = ["crates/models"];
/// Maximum number of files that import each other in a circle.
const CYCLE: usize = 5;
/// Maximum number of methods of a type, over all its `impl` blocks without a trait.
const METHODS: usize = 25;

/// Path of a module within its crate. The crate root is empty.
type ModulePath = Vec<String>;

/// Tokens of one file, without comments and without modules of tests.
struct Module {
    code: Vec<String>,
    defined: BTreeSet<String>,
    /// Private `use`: local name to path.
    imported: HashMap<String, ModulePath>,
    /// `pub use`: local name to path. Globs are under `*`.
    exported: Vec<(String, ModulePath)>,
}

type Modules = BTreeMap<ModulePath, Module>;

#[test]
fn import_cycles_are_limited_to_five_files() {
    let mut faults = Vec::new();
    for (krate, modules) in crates() {
        let edges = edges(&modules);
        let mut cycles = cycles(&edges);
        cycles.retain(|cycle| cycle.len() > CYCLE);
        let is_excepted = EXCEPTED_CRATES.contains(&krate.as_str());
        if is_excepted && cycles.is_empty() {
            faults.push(format!("{krate} needs no exception: remove it"));
        }
        for cycle in cycles.iter().filter(|_| !is_excepted) {
            let files: Vec<String> = cycle.iter().map(|module| module.join("::")).collect();
            faults.push(format!(
                "{krate}: {} files: {}",
                files.len(),
                files.join(" ")
            ));
        }
    }
    assert_none(faults);
}

#[test]
fn types_are_limited_to_25_methods() {
    let mut faults = Vec::new();
    for (krate, modules) in crates() {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for module in modules.values() {
            count_methods(&module.code, &mut counts);
        }
        let many = counts.into_iter().filter(|(_, count)| *count > METHODS);
        faults.extend(many.map(|(name, count)| format!("{krate}: {name} has {count} methods")));
    }
    assert_none(faults);
}

/// Modules of each crate of ours, by the directory of its sources.
fn crates() -> BTreeMap<String, Modules> {
    let mut crates: BTreeMap<String, Modules> = BTreeMap::new();
    for file in rust_files() {
        let product = ["crates/", "services/"];
        if !product
            .iter()
            .any(|directory| file.path.starts_with(directory))
        {
            continue;
        }
        let Some((directory, inside)) = file.path.split_once("/src/") else {
            continue;
        };
        let inside = inside.strip_suffix(".rs").unwrap_or(inside);
        let mut path: ModulePath = inside.split('/').map(str::to_owned).collect();
        if path == ["lib"] || path == ["main"] {
            path.clear();
        }
        let modules = crates.entry(directory.to_owned()).or_default();
        modules.entry(path).or_insert_with(|| read(&file.text));
    }
    assert!(crates.len() > 10, "most crates were not found");
    crates
}

// --- reading ---

fn read(text: &str) -> Module {
    let code = without_tests(&tokens(text));
    let mut module = Module {
        code: Vec::new(),
        defined: BTreeSet::new(),
        imported: HashMap::new(),
        exported: Vec::new(),
    };
    let mut at = 0;
    while at < code.len() {
        let word = code[at].as_str();
        if word == "use"
            && (at == 0 || ["}", ";", "{", "pub", ")", "]"].contains(&code[at - 1].as_str()))
        {
            let is_public = at > 0 && ["pub", ")"].contains(&code[at - 1].as_str());
            let mut found = Vec::new();
            at = use_tree(&code, at + 1, &[], &mut found);
            for (name, path) in found {
                if is_public {
                    module.exported.push((name, path));
                } else {
                    module.imported.insert(name, path);
                }
            }
            continue;
        }
        let items = [
            "struct", "enum", "trait", "fn", "const", "static", "type", "union",
        ];
        if items.contains(&word) && code.get(at + 1).is_some_and(|name| is_name(name)) {
            module.defined.insert(code[at + 1].clone());
        }
        if word == "macro_rules"
            && let Some(name) = code.get(at + 2)
        {
            module.defined.insert(name.clone());
        }
        at += 1;
    }
    module.code = code;
    module
}

/// Tokens without space and comments. `::` is one token.
fn tokens(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut at = 0;
    for token in tokenize(text, FrontmatterAllowed::No) {
        let end = at + token.len as usize;
        let piece = &text[at..end];
        at = end;
        match token.kind {
            TokenKind::Whitespace
            | TokenKind::LineComment { .. }
            | TokenKind::BlockComment { .. } => {}
            TokenKind::Colon if found.last().is_some_and(|last| last == ":") => {
                found.pop();
                found.push("::".to_owned());
            }
            _ => found.push(piece.to_owned()),
        }
    }
    found
}

/// The code without items under `#[cfg(test)]` and `#[cfg(all(test, …))]`.
fn without_tests(code: &[String]) -> Vec<String> {
    const MARKS: [&[&str]; 2] = [
        &["#", "[", "cfg", "(", "test", ")", "]"],
        &["#", "[", "cfg", "(", "all", "(", "test", ","],
    ];
    let mut remaining = Vec::new();
    let mut at = 0;
    while at < code.len() {
        let is_mark = |mark: &&&[&str]| code[at..].iter().take(mark.len()).eq(mark.iter());
        let Some(mark) = MARKS.iter().find(is_mark) else {
            remaining.push(code[at].clone());
            at += 1;
            continue;
        };
        at += mark.len();
        while at < code.len() && code[at] != "{" && code[at] != ";" {
            at += 1;
        }
        at = after_block(code, at);
    }
    remaining
}

/// Index after the block that begins at `at`, or after the one token there.
fn after_block(code: &[String], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while at < code.len() {
        match code[at].as_str() {
            "{" => depth += 1,
            "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
        if depth == 0 {
            break;
        }
    }
    at
}

/// Reads a tree of `use` that begins at `at`. Returns the index after it.
fn use_tree(
    code: &[String],
    mut at: usize,
    prefix: &[String],
    found: &mut Vec<(String, ModulePath)>,
) -> usize {
    let mut path = prefix.to_vec();
    while at < code.len() {
        match code[at].as_str() {
            "{" => {
                at += 1;
                while at < code.len() && code[at] != "}" {
                    at = use_tree(code, at, &path, found);
                    if code.get(at).is_some_and(|token| token == ",") {
                        at += 1;
                    }
                }
                return at + 1;
            }
            "*" => {
                path.push("*".to_owned());
                found.push(("*".to_owned(), path));
                return at + 1;
            }
            name => path.push(name.to_owned()),
        }
        at += 1;
        if code.get(at).is_some_and(|token| token == "::") {
            at += 1;
            continue;
        }
        break;
    }
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    let mut name = path.last().cloned().unwrap_or_default();
    if code.get(at).is_some_and(|token| token == "as") {
        name = code.get(at + 1).cloned().unwrap_or_default();
        at += 2;
    }
    found.push((name, path));
    at
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

// --- edges ---

/// For each module the modules whose items it names. Re-exports lead to the module that defines the item.
fn edges(modules: &Modules) -> BTreeMap<&ModulePath, BTreeSet<&ModulePath>> {
    let named = |path: &ModulePath, module: &Module| {
        let mut paths: BTreeSet<ModulePath> = module.imported.values().cloned().collect();
        paths.extend(written_paths(module));
        let targets = paths
            .iter()
            .filter_map(|item| defining(modules, path, item, 0));
        let targets = targets.filter_map(|target| modules.get_key_value(&target));
        targets
            .map(|(target, _)| target)
            .filter(|target| *target != path)
            .collect()
    };
    modules
        .iter()
        .map(|(path, module)| (path, named(path, module)))
        .collect()
}

/// Paths such as `a::b::C` outside of `use`.
fn written_paths(module: &Module) -> Vec<ModulePath> {
    let code = &module.code;
    let mut paths = Vec::new();
    let mut at = 0;
    while at + 2 < code.len() {
        let is_start = is_name(&code[at]) && (at == 0 || code[at - 1] != "::");
        if !is_start || code[at + 1] != "::" || !is_name(&code[at + 2]) {
            at += 1;
            continue;
        }
        let mut path = vec![code[at].clone()];
        while at + 2 < code.len() && code[at + 1] == "::" && is_name(&code[at + 2]) {
            path.push(code[at + 2].clone());
            at += 2;
        }
        paths.push(path);
        at += 1;
    }
    paths
}

/// The module that defines the item of a path, seen from `from`. `None` for other crates and for modules themselves.
fn defining(
    modules: &Modules,
    from: &ModulePath,
    path: &[String],
    depth: usize,
) -> Option<ModulePath> {
    if depth > 30 {
        return None;
    }
    let mut here = from.clone();
    let mut rest = path;
    match rest.first()?.as_str() {
        "crate" => {
            here.clear();
            rest = &rest[1..];
        }
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|part| part == "super") {
                here.pop();
                rest = &rest[1..];
            }
        }
        first => {
            let existing = modules.get(&here)?;
            if !modules.contains_key(&below(&here, first)) {
                let local = existing
                    .imported
                    .get(first)
                    .filter(|target| *target != path);
                if let Some(target) = local {
                    let full_path = [target, &rest[1..]].concat();
                    return defining(modules, &here, &full_path, depth + 1);
                }
                if !existing.defined.contains(first)
                    && !existing.exported.iter().any(|(name, _)| name == first)
                {
                    return None;
                }
            }
        }
    }
    while let Some(part) = rest.first() {
        let next = below(&here, part);
        if modules.contains_key(&next) {
            here = next;
            rest = &rest[1..];
            continue;
        }
        let module = modules.get(&here)?;
        if part == "*" || module.defined.contains(part) {
            return Some(here);
        }
        let named = module.exported.iter().find(|(name, _)| name == part);
        let named = named
            .map(|(_, target)| target)
            .or_else(|| module.imported.get(part));
        if let Some(target) = named {
            let full_path = [target, &rest[1..]].concat();
            return defining(modules, &here, &full_path, depth + 1);
        }
        let globs = module.exported.iter().filter(|(name, _)| name == "*");
        for (_, glob) in globs {
            let full_path = [&glob[..glob.len() - 1], rest].concat();
            if let Some(found) = defining(modules, &here, &full_path, depth + 1) {
                return Some(found);
            }
        }
        return Some(here);
    }
    None
}

fn below(path: &ModulePath, name: &str) -> ModulePath {
    let mut path = path.clone();
    path.push(name.to_owned());
    path
}

/// Groups of modules that reach each other.
fn cycles<'a>(
    edges: &BTreeMap<&'a ModulePath, BTreeSet<&'a ModulePath>>,
) -> Vec<Vec<&'a ModulePath>> {
    let reach: BTreeMap<_, _> = edges
        .keys()
        .map(|from| (*from, reachable(edges, from)))
        .collect();
    let mut grouped: BTreeSet<&ModulePath> = BTreeSet::new();
    let mut cycles = Vec::new();
    for (from, targets) in &reach {
        if grouped.contains(from) || !targets.contains(from) {
            continue;
        }
        let cycle: Vec<_> = targets
            .iter()
            .copied()
            .filter(|to| reach[to].contains(from))
            .collect();
        grouped.extend(cycle.iter().copied());
        cycles.push(cycle);
    }
    cycles
}

fn reachable<'a>(
    edges: &BTreeMap<&'a ModulePath, BTreeSet<&'a ModulePath>>,
    from: &'a ModulePath,
) -> BTreeSet<&'a ModulePath> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        let next = edges.get(module).into_iter().flatten();
        open.extend(next.copied().filter(|module| found.insert(*module)));
    }
    found
}

// --- methods ---

/// Adds the methods of `impl Type` blocks; `impl Trait for Type` does not count.
fn count_methods(code: &[String], counts: &mut BTreeMap<String, usize>) {
    let mut at = 0;
    while at < code.len() {
        let is_impl = code[at] == "impl"
            && (at == 0 || ["}", ";", "]", "{"].contains(&code[at - 1].as_str()));
        if !is_impl {
            at += 1;
            continue;
        }
        let length = code[at..]
            .iter()
            .position(|token| token == "{")
            .unwrap_or(0);
        let (head, start) = (&code[at + 1..at + length], at + length);
        let end = after_block(code, start);
        if let Some(name) = own_type(head) {
            *counts.entry(name).or_default() += functions_of(&code[start..end]);
        }
        at = end.max(at + 1);
    }
}

/// The name after `impl` and its generics, unless the block is of a trait.
fn own_type(head: &[String]) -> Option<String> {
    let mut depth = 0_i32;
    let mut outside = Vec::new();
    for token in head {
        match token.as_str() {
            "<" => depth += 1,
            ">" => depth -= 1,
            _ if depth == 0 => outside.push(token),
            _ => {}
        }
    }
    if outside.iter().any(|token| *token == "for") {
        return None;
    }
    let clause = outside
        .iter()
        .position(|token| *token == "where")
        .unwrap_or(outside.len());
    outside[..clause]
        .iter()
        .rev()
        .find(|token| is_name(token))
        .map(|token| (*token).clone())
}

fn functions_of(block: &[String]) -> usize {
    let mut depth = 0_usize;
    let mut count = 0;
    for token in block {
        match token.as_str() {
            "{" => depth += 1,
            "}" => depth = depth.saturating_sub(1),
            "fn" if depth == 1 => count += 1,
            _ => {}
        }
    }
    count
}

#[test]
fn follows_reexports_and_counts_own_methods() {
    let texts = [
        (vec![], "mod a; mod b; pub use a::Thing;"),
        (
            vec!["a"],
            "use crate::b::other; pub struct Thing; impl Thing { fn one() {} fn two() {} } impl Drop for Thing { fn drop() {} }",
        ),
        (
            vec!["b"],
            "use crate::Thing; pub fn other(thing: Thing) {} #[cfg(test)] mod tests { use crate::c::Never; }",
        ),
        (
            vec!["c"],
            "pub struct Never; fn call() { crate::b::other(crate::Thing) }",
        ),
    ];
    let path = |parts: Vec<&str>| parts.into_iter().map(str::to_owned).collect::<ModulePath>();
    let modules: Modules = texts
        .into_iter()
        .map(|(parts, text)| (path(parts), read(text)))
        .collect();
    let edges = edges(&modules);
    let cycles = cycles(&edges);
    assert_eq!(cycles, [[&path(vec!["a"]), &path(vec!["b"])]]);
    let mut counts = BTreeMap::new();
    count_methods(&modules[&path(vec!["a"])].code, &mut counts);
    assert_eq!(counts, BTreeMap::from([("Thing".to_owned(), 2)]));
}
