//! The graph of subschemas and references, used to estimate cost. It has an edge for each meaning of a keyword in
//! any dialect, so it overestimates.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value};

use super::estimate::Patterns;

/// Maximum number of references in one schema.
const REFERENCES: usize = 512;
/// Maximum number of references with `unevaluatedProperties` or `unevaluatedItems`, which follow them
/// repeatedly.
const REFERENCES_UNEVALUATED: usize = 16;
/// Maximum number of patterns in one schema. A pattern with lookaround or backreferences counts by its parts.
const PATTERNS: usize = 64;
/// Maximum number of subschemas with an id.
const RESOURCES: usize = 32;

/// Index of the root schema.
pub(super) const ROOT: usize = 0;

/// Subschemas by index; the root has index 0.
#[derive(Default)]
pub(super) struct SchemaGraph {
    nodes: Vec<SchemaNode>,
    patterns: usize,
    has_references: bool,
}

#[derive(Default)]
pub(super) struct SchemaNode {
    /// Subschemas that apply to the same value.
    pub(super) same_value: Vec<usize>,
    pub(super) properties: BTreeMap<String, usize>,
    /// Subschemas for members of any name, for names, for items by position, and for all items.
    pub(super) members: Vec<usize>,
    pub(super) names: Vec<usize>,
    pub(super) first: Vec<usize>,
    pub(super) items: Vec<usize>,
    pub(super) plain: u64,
    pub(super) patterns: Patterns,
    pub(super) member_patterns: Patterns,
    pub(super) is_unevaluated: bool,
}

impl SchemaGraph {
    /// Builds the graph of a schema. The error states why the schema is unusable.
    pub(super) fn of(schema: &Value) -> Result<Self, String> {
        let mut building = GraphBuilder {
            document: schema,
            graph: Self::default(),
            numbers: HashMap::new(),
            names: BTreeMap::new(),
            references: Vec::new(),
        };
        building.node(schema, schema)?;
        // A reference may target a subschema that the keyword walk did not reach, with further references.
        let mut linked = 0;
        while let Some((from, resource, reference)) = building.references.get(linked).copied() {
            linked += 1;
            building.link(from, resource, reference)?;
        }
        let mut graph = building.graph;
        graph.has_references = linked > 0;
        let is_unevaluated = graph.nodes.iter().any(|node| node.is_unevaluated);
        if graph.patterns > PATTERNS {
            return Err(format!("has more than {PATTERNS} patterns"));
        }
        if is_unevaluated && linked > REFERENCES_UNEVALUATED {
            return Err(format!(
                "has `unevaluated…` and more than {REFERENCES_UNEVALUATED} references"
            ));
        }
        Ok(graph)
    }

    pub(super) fn node(&self, at: usize) -> &SchemaNode {
        &self.nodes[at]
    }

    /// Number of patterns to compile.
    pub(super) fn patterns(&self) -> usize {
        self.patterns
    }

    pub(super) fn has_references(&self) -> bool {
        self.has_references
    }
}

struct GraphBuilder<'a> {
    document: &'a Value,
    graph: SchemaGraph,
    /// Indexes by address in the document.
    numbers: HashMap<usize, usize>,
    /// Subschemas by `$id` and by anchor. Anchors begin with `#`.
    names: BTreeMap<String, &'a Value>,
    /// Source subschema, enclosing resource and text of each reference.
    references: Vec<(usize, &'a Value, &'a str)>,
}

impl<'a> GraphBuilder<'a> {
    /// Index of a subschema. `resource` is the base of its pointers.
    fn node(&mut self, schema: &'a Value, resource: &'a Value) -> Result<usize, String> {
        let address = std::ptr::from_ref(schema).addr();
        if let Some(&number) = self.numbers.get(&address) {
            return Ok(number);
        }
        let number = self.graph.nodes.len();
        // Registered before its members are visited: a reference cycle ends here.
        self.numbers.insert(address, number);
        self.graph.nodes.push(SchemaNode::default());
        let mut node = SchemaNode {
            plain: 1,
            ..SchemaNode::default()
        };
        if let Value::Object(members) = schema {
            let resource = self.name(schema, members, resource)?;
            node.plain += members.len() as u64;
            for (keyword, value) in members {
                self.keyword(number, &mut node, keyword, value, resource)?;
            }
        }
        self.graph.nodes[number] = node;
        Ok(number)
    }

    /// Records the names of a subschema. Returns the base of its pointers.
    fn name(
        &mut self,
        schema: &'a Value,
        members: &'a Map<String, Value>,
        resource: &'a Value,
    ) -> Result<&'a Value, String> {
        let mut begins = resource;
        for keyword in ["$id", "id", "$anchor"] {
            let Some(name) = members.get(keyword).and_then(Value::as_str) else {
                continue;
            };
            let is_root = std::ptr::eq(schema, self.document);
            let is_anchor = keyword == "$anchor" || name.starts_with('#');
            let plain = name.trim_start_matches('#');
            let is_plain = plain
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
            // Other ids need URI resolution, which the graph lacks. Subschemas of metaschemas would not be counted.
            if is_of_schemas(name) || !(is_plain || (is_root && !is_anchor)) {
                return Err("has an `$id` that is no plain name".to_owned());
            }
            let name = if is_anchor {
                format!("#{plain}")
            } else {
                name.to_owned()
            };
            if self.names.insert(name, schema).is_some() || self.names.len() > RESOURCES {
                return Err("has an `$id` twice, or too many of them".to_owned());
            }
            if !is_anchor {
                begins = schema;
            }
        }
        Ok(begins)
    }

    fn keyword(
        &mut self,
        number: usize,
        node: &mut SchemaNode,
        keyword: &'a str,
        value: &'a Value,
        resource: &'a Value,
    ) -> Result<(), String> {
        match (keyword, value) {
            ("$ref", Value::String(reference)) => {
                if self.references.len() == REFERENCES {
                    return Err(format!("has more than {REFERENCES} references"));
                }
                self.references.push((number, resource, reference));
            }
            ("$dynamicRef" | "$recursiveRef", _) => {
                return Err(format!("has a `{keyword}`; use `$ref`"));
            }
            // The validator compares each value, also nested ones.
            ("const" | "enum" | "required" | "dependentRequired", value) => {
                node.plain += values_in(value);
            }
            ("pattern", Value::String(pattern)) => {
                self.graph.patterns += add(&mut node.patterns, pattern);
            }
            ("properties", Value::Object(members)) => {
                for (name, schema) in members {
                    let schema = self.node(schema, resource)?;
                    node.properties.insert(name.clone(), schema);
                }
            }
            ("patternProperties", Value::Object(members)) => {
                for (pattern, schema) in members {
                    self.graph.patterns += add(&mut node.member_patterns, pattern);
                    node.members.push(self.node(schema, resource)?);
                }
            }
            ("dependentSchemas" | "dependencies", Value::Object(members)) => {
                for schema in members.values() {
                    // Drafts differ: members are lists of names or subschemas.
                    node.plain += values_in(schema);
                    node.same_value.push(self.node(schema, resource)?);
                }
            }
            ("items" | "prefixItems", Value::Array(schemas)) => {
                for schema in schemas {
                    node.first.push(self.node(schema, resource)?);
                }
            }
            ("$defs" | "definitions", Value::Object(members)) => {
                // Definitions count even without a reference: the graph overestimates.
                for schema in members.values() {
                    self.node(schema, resource)?;
                }
            }
            _ => self.applied(node, keyword, value, resource)?,
        }
        Ok(())
    }

    /// Keywords with one or more subschemas.
    fn applied(
        &mut self,
        node: &mut SchemaNode,
        keyword: &str,
        value: &'a Value,
        resource: &'a Value,
    ) -> Result<(), String> {
        let targets = match keyword {
            "allOf" | "anyOf" | "oneOf" | "not" | "if" | "then" | "else" => &mut node.same_value,
            "additionalProperties" | "unevaluatedProperties" => &mut node.members,
            "propertyNames" => &mut node.names,
            "items" | "contains" | "additionalItems" | "unevaluatedItems" => &mut node.items,
            _ => return Ok(()),
        };
        match value {
            Value::Array(schemas) => {
                for schema in schemas {
                    targets.push(self.node(schema, resource)?);
                }
            }
            schema => targets.push(self.node(schema, resource)?),
        }
        node.is_unevaluated |= keyword.starts_with("unevaluated");
        Ok(())
    }

    /// Adds an edge from a subschema to the target of a reference.
    fn link(&mut self, from: usize, resource: &'a Value, reference: &str) -> Result<(), String> {
        let lost = || {
            let shown: String = reference.escape_debug().take(60).collect();
            format!(
                "refers to `{shown}`; it may refer only to its own parts, by `#/…` or by a plain name"
            )
        };
        let pointer = reference
            .strip_prefix('#')
            .filter(|pointer| pointer.is_empty() || pointer.starts_with('/'));
        let targets = match pointer {
            Some(pointer) => {
                let pointer = percent_decoded(pointer).ok_or_else(lost)?;
                // Dialects differ in the base of a pointer.
                let within = resource.pointer(&pointer);
                let document = self.document.pointer(&pointer);
                let document = document
                    .filter(|target| !within.is_some_and(|within| std::ptr::eq(within, *target)));
                vec![within, document]
            }
            None => vec![self.names.get(reference).copied()],
        };
        let targets: Vec<_> = targets.into_iter().flatten().collect();
        if targets.is_empty() {
            return Err(lost());
        }
        for target in targets {
            let target = self.node(target, resource)?;
            self.graph.nodes[from].same_value.push(target);
        }
        Ok(())
    }
}

/// Adds a pattern. Returns its number of parts.
fn add(patterns: &mut Patterns, pattern: &str) -> usize {
    let parts = steep_parts(pattern);
    if parts == 0 {
        patterns.plain += 1;
    } else {
        patterns.steep += 1;
    }
    1 + parts
}

/// Syntax of patterns that may backtrack.
const STEEP: [&str; 13] = [
    "(?=", "(?!", "(?<", "(?>", "(?(", "\\k", "\\g", "\\G", "\\K", "++", "*+", "?+", "}+",
];

/// Number of parts of a pattern with lookaround or backreferences; 0 for others.
fn steep_parts(pattern: &str) -> usize {
    let looks_around = STEEP.iter().any(|mark| pattern.contains(mark));
    let refers_back = pattern
        .as_bytes()
        .windows(2)
        .any(|pair| matches!(pair, [b'\\', b'1'..=b'9']));
    if looks_around || refers_back {
        pattern
            .bytes()
            .filter(|byte| b"(\\+".contains(byte))
            .count()
    } else {
        0
    }
}

// Metaschemas are built into the library and are not counted.
fn is_of_schemas(id: &str) -> bool {
    id.to_ascii_lowercase().contains("json-schema.org")
}

fn percent_decoded(text: &str) -> Option<String> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
    decoded.ok().map(std::borrow::Cow::into_owned)
}

fn values_in(value: &Value) -> u64 {
    match value {
        Value::Array(items) => 1 + items.iter().map(values_in).sum::<u64>(),
        Value::Object(members) => 1 + members.values().map(values_in).sum::<u64>(),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_stay_within_the_schema() {
        for (schema, is_followed) in [
            (json!({"$ref": "#/$defs/a", "$defs": {"a": {}}}), true),
            (
                json!({"properties": {"a~b": {"$ref": "#/properties/a~0b"}}}),
                true,
            ),
            (json!({"$ref": "#/$defs/a%20b", "$defs": {"a b": {}}}), true),
            (
                json!({"$ref": "#a", "$defs": {"x": {"$anchor": "a"}}}),
                true,
            ),
            (
                json!({"$ref": "T0", "$defs": {"x": {"$id": "T0", "items": {"$ref": "T0"}}}}),
                true,
            ),
            (
                json!({"$id": "https://a.example/x", "items": {"$ref": "#"}}),
                true,
            ),
            (
                json!({"$ref": "#/x-other/a", "x-other": {"a": {"$ref": "#"}}}),
                true,
            ),
            (json!({"$ref": "#/$defs/b"}), false),
            (json!({"$ref": "https://a.example/x"}), false),
            (
                json!({"$ref": "http://json-schema.org/draft-07/schema#"}),
                false,
            ),
            (
                json!({"$id": "http://JSON-schema.org/draft-07/schema"}),
                false,
            ),
            (json!({"not": {"$id": "https://a.example/x"}}), false),
            (json!({"allOf": [{"$id": "a"}, {"$id": "a"}]}), false),
            (
                json!({"$dynamicRef": "#a", "$defs": {"x": {"$dynamicAnchor": "a"}}}),
                false,
            ),
        ] {
            assert_eq!(SchemaGraph::of(&schema).is_ok(), is_followed, "{schema}");
        }
    }

    #[test]
    fn backtracking_patterns_count_by_parts() {
        for (pattern, parts) in [
            ("^[a-z]+(x|y)\\d$", 0),
            ("^(?:a)$", 0),
            ("^(?=.*\\d).+$", 3),
            ("(a)\\1", 2),
        ] {
            assert_eq!(steep_parts(pattern), parts, "{pattern}");
        }
    }
}
