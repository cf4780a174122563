//! Describes our schemas in the notation of the peer script.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::ours::Ours;

const LIMITS: [(&str, &str); 4] = [
    ("minLength", "least length"),
    ("maxLength", "most length"),
    ("minItems", "least items"),
    ("maxItems", "most items"),
];

/// One field.
#[derive(Debug)]
pub struct FieldShape {
    pub required: bool,
    pub nullable: bool,
    /// `string`, `enum(a,b)`, `[string]`, `{any}`, a class name, or alternatives joined by `|`. Formatted
    /// strings are `uuid` and `pattern`.
    pub kind: String,
    limits: Value,
}

impl FieldShape {
    /// True if the schema allows this probe value. `None` if another entity decides or the probe does not apply.
    pub fn may_be(&self, what: &str) -> Option<bool> {
        if what == "left out" {
            return Some(!self.required);
        }
        if self.kind == "any" {
            return Some(true);
        }
        if what == "null" {
            return Some(self.nullable);
        }
        let alternatives = self.kind.split('|').map(|kind| match (what, kind) {
            ("an integer", _) => Some(["integer", "number"].contains(&kind)),
            ("a fraction", _) => Some(kind == "number"),
            ("a flag", _) => Some(kind == "boolean"),
            ("a text", "string") => Some(true),
            ("a text", _) => Some(kind.strip_prefix("enum(").is_some_and(has_text)),
            ("a list" | "an object", _) if self.is_entity() => None,
            ("a list", _) => Some(kind.starts_with('[')),
            ("an object", _) => Some(kind.starts_with('{')),
            _ => None,
        });
        alternatives.reduce(|one, other| Some(one? || other?))?
    }

    /// True if the field holds one entity.
    pub fn is_entity(&self) -> bool {
        self.kind.starts_with(char::is_uppercase)
    }
}

/// The text of the probe is also a value of one enumeration.
fn has_text(values: &str) -> bool {
    values
        .trim_end_matches(')')
        .split(',')
        .any(|value| value == "text")
}

/// Schemas of all our entities.
pub struct Shapes {
    components: BTreeMap<String, Value>,
    /// Our type name and schema, with the SDK class.
    classes: Vec<(String, Value, &'static str)>,
}

impl Shapes {
    pub fn of(ours: &[Ours]) -> Self {
        let components = ours.iter().flat_map(|entity| entity.components.clone());
        let class = |entity: &Ours| (entity.name.clone(), entity.schema.clone(), entity.theirs);
        Self {
            components: components.collect(),
            classes: ours.iter().map(class).collect(),
        }
    }

    pub fn fields(&self, entity: &Ours) -> BTreeMap<String, FieldShape> {
        let mut parts = Vec::new();
        self.collect_parts(&entity.schema, &mut parts);
        let mut fields = BTreeMap::new();
        for part in parts {
            let required: Vec<_> = list(&part["required"]);
            let properties = part["properties"].as_object();
            for (name, schema) in properties.into_iter().flatten() {
                let (kind, nullable) = self.kind(schema);
                let limits = LIMITS.iter().filter_map(|(ours, theirs)| {
                    let limit = schema.get(ours)?;
                    Some(((*theirs).to_owned(), limit.clone()))
                });
                let field = FieldShape {
                    required: required.contains(&json!(name)),
                    nullable,
                    kind,
                    limits: Value::Object(limits.collect()),
                };
                fields.insert(name.clone(), field);
            }
        }
        assert!(!fields.is_empty(), "{} has no fields", entity.name);
        fields
    }

    /// Collects the parts of a flattened object.
    fn collect_parts(&self, schema: &Value, parts: &mut Vec<Value>) {
        match (schema["allOf"].as_array(), reference(schema)) {
            (Some(all), _) => all.iter().for_each(|one| self.collect_parts(one, parts)),
            (_, Some(name)) => self.collect_parts(&self.components[name], parts),
            _ => parts.push(schema.clone()),
        }
    }

    /// The type, and whether it is nullable.
    fn kind(&self, schema: &Value) -> (String, bool) {
        if let Some(name) = reference(schema) {
            let class = self.classes.iter().find(|(ours, _, _)| ours == name);
            return match class {
                Some((_, _, theirs)) => ((*theirs).to_owned(), false),
                None => self.kind(&self.components[name]),
            };
        }
        let alternatives = list(&schema["oneOf"]);
        if !alternatives.is_empty() {
            let kinds: Vec<_> = alternatives.iter().map(|one| self.kind(one)).collect();
            let names: BTreeSet<_> = kinds.iter().map(|(kind, _)| kind.as_str()).collect();
            let nullable = names.contains("null") || kinds.iter().any(|(_, nullable)| *nullable);
            let names: Vec<_> = names.into_iter().filter(|name| *name != "null").collect();
            return (names.join("|"), nullable);
        }
        let mut names = match &schema["type"] {
            Value::Array(names) => names.clone(),
            Value::Null => return ("any".to_owned(), false),
            name => vec![name.clone()],
        };
        let nullable = names.len() > 1 && names.contains(&json!("null"));
        names.retain(|name| !nullable || *name != "null");
        let names: Vec<_> = names.iter().map(|name| self.named(schema, name)).collect();
        (names.join("|"), nullable)
    }

    fn named(&self, schema: &Value, name: &Value) -> String {
        let name = name.as_str().unwrap();
        match name {
            "array" => format!("[{}]", self.kind(&schema["items"]).0),
            "object" if schema.get("properties").is_some() => {
                let class = self.classes.iter().find(|(_, ours, _)| ours == schema);
                class
                    .map_or("an object of its own", |(_, _, theirs)| theirs)
                    .to_owned()
            }
            "object" => {
                let inner = &schema["additionalProperties"];
                format!("{{{}}}", self.kind(inner).0)
            }
            "string" if schema["format"] == "uuid" => "uuid".to_owned(),
            "string" if schema.get("pattern").is_some() => "pattern".to_owned(),
            _ => match list(&schema["enum"]) {
                values if values.is_empty() => name.to_owned(),
                values => {
                    let mut values: Vec<_> = values.iter().filter_map(Value::as_str).collect();
                    values.sort_unstable();
                    format!("enum({})", values.join(","))
                }
            },
        }
    }

    /// Lists the fields that differ, one line each.
    pub fn differences(&self, entity: &Ours, theirs: &Value) -> Vec<String> {
        let ours = self.fields(entity);
        let theirs = theirs.as_object().unwrap();
        let mut found = Vec::new();
        for (name, field) in &ours {
            let mut differs = |how: String| found.push(format!("{}.{name} {how}", entity.theirs));
            let Some(their) = theirs.get(name) else {
                differs("is only ours".to_owned());
                continue;
            };
            if field.kind != their["type"] {
                let their = their["type"].as_str().unwrap();
                differs(format!("is {} for us, {their} for them", field.kind));
            }
            // The probes test required and nullable fields.
            if field.limits != their["limits"] {
                let (ours, their) = (&field.limits, &their["limits"]);
                differs(format!("has the limits {ours} for us, {their} for them"));
            }
        }
        let only_theirs = theirs.keys().filter(|name| !ours.contains_key(*name));
        found.extend(only_theirs.map(|name| format!("{}.{name} is only theirs", entity.theirs)));
        found
    }

    /// Adds our required fields so that the rest of a document can be parsed.
    pub fn complete(&self, entity: &Ours, document: &mut Value, full: &Value) {
        let document = document.as_object_mut().unwrap();
        for (name, field) in self.fields(entity) {
            let has_none = document.get(&name).is_none_or(Value::is_null);
            if field.required && has_none && full.get(&name).is_some() {
                document.insert(name.clone(), full[&name].clone());
            }
        }
    }

    /// True if a path ends at a field that only the SDK has. A deeper path may end in any entity, because each
    /// entity is also compared on its own.
    pub fn is_theirs_alone(&self, entity: &Ours, path: &str, theirs: &Value) -> bool {
        let is_theirs = |class: &str, name: &str| theirs[class]["fields"].get(name).is_some();
        self.at_end(entity, path, |class, ours, name| {
            is_theirs(class, name) && !ours.contains_key(name)
        })
    }

    /// True if a path ends at a field that only our type has.
    pub fn is_ours_alone(&self, entity: &Ours, path: &str, theirs: &Value) -> bool {
        let is_theirs = |class: &str, name: &str| theirs[class]["fields"].get(name).is_some();
        self.at_end(entity, path, |class, ours, name| {
            ours.contains_key(name) && !is_theirs(class, name)
        })
    }

    fn at_end(
        &self,
        entity: &Ours,
        path: &str,
        holds: impl Fn(&str, &BTreeMap<String, FieldShape>, &str) -> bool,
    ) -> bool {
        let (above, name) = path.rsplit_once('/').unwrap_or_default();
        if above.is_empty() {
            return holds(entity.theirs, &self.fields(entity), name);
        }
        super::entities()
            .iter()
            .any(|inner| holds(inner.theirs, &self.fields(inner), name))
    }
}

fn reference(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.rsplit('/').next()
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}
