//! Bounds of requests and pages where a type declares none. These are the bounds that the code enforces.

use std::collections::{BTreeMap, BTreeSet};

use protocol::lists::MAX_ITEMS;
use utoipa::Number;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{
    AdditionalProperties, ArrayItems, KnownFormat, Schema, SchemaFormat, SchemaType, Type,
};
use utoipa::openapi::{OpenApi, RefOr};

use super::general::operations_of;
use web::model_memory::BODY_BYTES;

/// Maximum characters of a parameter. Percent-encoded, all parameters of a request fit into the request head.
const PARAMETER_CHARS: usize = 500;
/// Maximum characters of a parameter with comma-separated names.
const NAMES_CHARS: usize = 2_000;
/// Parameters with comma-separated names.
const OF_NAMES: [&str; 2] = ["statuses", "event_types"];

/// Adds bounds to requests and pages.
pub(super) fn bound(document: &mut OpenApi) {
    bound_requests(document);
    bound_pages(document);
}

/// Adds bounds to every list and text of a request. A body's texts are bounded by the body limit; a list of
/// known names holds each once.
fn bound_requests(document: &mut OpenApi) {
    let schemas = document.components.get_or_insert_default();
    let mut schemas = std::mem::take(&mut schemas.schemas);
    let declared = schemas.clone();
    let mut reached = BTreeSet::new();
    for operation in (document.paths.paths.values_mut()).flat_map(operations_of) {
        for parameter in operation.parameters.iter_mut().flatten() {
            if let RefOr::T(parameter) = parameter
                && let Some(schema) = &mut parameter.schema
            {
                let has_names = OF_NAMES.contains(&parameter.name.as_str());
                let max_length = if has_names {
                    NAMES_CHARS
                } else {
                    PARAMETER_CHARS
                };
                let mut of_head = Bounding::new(&declared, max_length);
                of_head.bound(schema);
            }
        }
        if let Some(RefOr::T(body)) = &mut operation.request_body {
            for content in body.content.values_mut() {
                let mut of_body = Bounding::new(&declared, BODY_BYTES);
                if let RefOr::T(content) = content
                    && let Some(schema) = &mut content.schema
                {
                    of_body.bound(schema);
                }
                reached.append(&mut of_body.reached);
            }
        }
    }
    // Schemas refer to each other, so each is visited once.
    let mut done = BTreeSet::new();
    while let Some(name) = reached.pop_first() {
        if let Some(schema) = schemas.get_mut(&name)
            && done.insert(name)
        {
            let mut of_body = Bounding::new(&declared, BODY_BYTES);
            of_body.bound(schema);
            reached.append(&mut of_body.reached);
        }
    }
    document.components.get_or_insert_default().schemas = schemas;
}

/// Bounds the items of each page by its `limit`. A page stays unbounded if any of its operations has no `limit`.
fn bound_pages(document: &mut OpenApi) {
    let mut limits: BTreeMap<String, Option<usize>> = BTreeMap::new();
    for operation in (document.paths.paths.values_mut()).flat_map(operations_of) {
        let Some(page) = page_of(operation) else {
            continue;
        };
        let limit = limit_of(operation);
        let max_limit = limits.entry(page).or_insert(limit);
        *max_limit = (*max_limit).zip(limit).map(|(one, other)| one.max(other));
    }
    let schemas = &mut document.components.get_or_insert_default().schemas;
    for (page, limit) in limits {
        if let Some(RefOr::T(Schema::Object(page))) = schemas.get_mut(&page)
            && let Some(RefOr::T(Schema::Array(items))) = page.properties.get_mut("items")
        {
            items.max_items = limit;
        }
    }
}

/// The schema name of the page that an operation returns.
fn page_of(operation: &Operation) -> Option<String> {
    let RefOr::T(answer) = operation.responses.responses.get("200")? else {
        return None;
    };
    let RefOr::T(content) = answer.content.get("application/json")? else {
        return None;
    };
    match content.schema.as_ref()? {
        RefOr::Ref(reference) => {
            name_of(&reference.ref_location).filter(|name| name.starts_with("Page_"))
        }
        RefOr::T(_) => None,
    }
}

/// The maximum page size of an operation.
fn limit_of(operation: &Operation) -> Option<usize> {
    let parameters = operation.parameters.iter().flatten();
    let mut limits = parameters.filter_map(|parameter| match parameter {
        RefOr::T(parameter) if parameter.name == "limit" => parameter.schema.as_ref(),
        _ => None,
    });
    let RefOr::T(Schema::Object(limit)) = limits.next()? else {
        return None;
    };
    match limit.maximum.as_ref()? {
        Number::UInt(max) => Some(*max),
        Number::Int(max) => usize::try_from(*max).ok(),
        Number::Float(_) => None,
    }
}

struct Bounding<'a> {
    declared: &'a BTreeMap<String, RefOr<Schema>>,
    text_bytes: usize,
    /// Names of referenced schemas.
    reached: BTreeSet<String>,
}

impl<'a> Bounding<'a> {
    fn new(declared: &'a BTreeMap<String, RefOr<Schema>>, text_bytes: usize) -> Self {
        Self {
            declared,
            text_bytes,
            reached: BTreeSet::new(),
        }
    }

    fn bound(&mut self, schema: &mut RefOr<Schema>) {
        match schema {
            RefOr::Ref(reference) => {
                self.reached.extend(name_of(&reference.ref_location));
            }
            RefOr::T(Schema::Object(object)) => {
                let is_binary =
                    object.format == Some(SchemaFormat::KnownFormat(KnownFormat::Binary));
                if is_text(&object.schema_type) && object.enum_values.is_none() && !is_binary {
                    object.max_length.get_or_insert(self.text_bytes);
                }
                for property in object.properties.values_mut() {
                    self.bound(property);
                }
                if let Some(more) = &mut object.additional_properties
                    && let AdditionalProperties::RefOr(more) = more.as_mut()
                {
                    self.bound(more);
                }
            }
            RefOr::T(Schema::Array(array)) => {
                if let ArrayItems::RefOrSchema(items) = &mut array.items {
                    let names = self.names_of(items);
                    array.max_items.get_or_insert(names.unwrap_or(MAX_ITEMS));
                    self.bound(items);
                }
            }
            RefOr::T(Schema::OneOf(one)) => one.items.iter_mut().for_each(|item| self.bound(item)),
            RefOr::T(Schema::AllOf(all)) => all.items.iter_mut().for_each(|item| self.bound(item)),
            RefOr::T(Schema::AnyOf(any)) => any.items.iter_mut().for_each(|item| self.bound(item)),
            RefOr::T(_) => {}
        }
    }

    /// The number of known names, if the items are an enumeration.
    fn names_of(&self, items: &RefOr<Schema>) -> Option<usize> {
        let items = match items {
            RefOr::Ref(reference) => self.declared.get(&name_of(&reference.ref_location)?)?,
            RefOr::T(_) => items,
        };
        match items {
            RefOr::T(Schema::Object(object)) => object.enum_values.as_ref().map(Vec::len),
            _ => None,
        }
    }
}

fn is_text(schema_type: &SchemaType) -> bool {
    match schema_type {
        SchemaType::Type(one) => *one == Type::String,
        SchemaType::Array(several) => several.contains(&Type::String),
        SchemaType::AnyValue => false,
    }
}

fn name_of(location: &str) -> Option<String> {
    location.rsplit_once('/').map(|(_, name)| name.to_owned())
}
