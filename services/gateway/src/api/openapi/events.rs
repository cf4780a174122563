//! Events and results as unions: the `type` of each selects the schema of its `data`.
//!
//! A type without payload schema in this version keeps the general form in code, but has no schema here: a
//! schema for any text would also match the known types, and generated clients could not narrow by `type`.

use std::collections::BTreeMap;

use protocol::result::ResultType;
use utoipa::openapi::schema::{Discriminator, Object, OneOf, Schema, SchemaType, Type};
use utoipa::openapi::{Ref, RefOr};

/// Payloads that the gateway accepts with missing members, because they are telemetry.
const TOLERATED: [&str; 3] = [
    "ToolCallStartedPayload",
    "ToolCallCompletedPayload",
    "ArtifactCreatedPayload",
];

/// Added to the description of a union.
const NEW_TYPES: &str = "\n\nLater versions may add types: ignore an event of a type that you do not know. \
    The schemas below are those of the known types.";

/// A schema whose `type` has a value for each result type.
pub(super) struct TypedUnion {
    /// Name of the schema that becomes a union.
    pub(super) name: &'static str,
    /// Last word of the schema names of its members.
    pub(super) word: &'static str,
    /// Types that only the gateway writes.
    pub(super) own: &'static [&'static str],
    /// True if `data` may be absent for a type whose payload needs no member.
    pub(super) is_data_optional: bool,
}

impl TypedUnion {
    /// Replaces the schema by a union with one member for each result type.
    pub(super) fn replace(&self, schemas: &mut BTreeMap<String, RefOr<Schema>>) {
        let Some(RefOr::T(Schema::Object(base))) = schemas.get(self.name).cloned() else {
            return;
        };
        let mut items = Vec::new();
        let mut mapping = BTreeMap::new();
        let results = ResultType::ALL.iter().map(|kind| kind.as_str());
        for kind in results.chain(self.own.iter().copied()) {
            let stem = stem_of(kind);
            let member = format!("{stem}{}", self.word);
            let payload = format!("{stem}Payload");
            let reference = Ref::from_schema_name(&member);
            mapping.insert(kind.to_owned(), reference.ref_location.clone());
            items.push(RefOr::Ref(reference));
            let needs_data = !self.is_data_optional || requires(schemas, &payload);
            let one = member_of(&base, kind, &payload, needs_data);
            schemas.insert(member, Schema::Object(one).into());
        }
        let description = base.description.unwrap_or_default();
        let union = OneOf {
            items,
            schema_type: SchemaType::AnyValue,
            description: Some(description + NEW_TYPES),
            discriminator: Some(Discriminator::with_mapping("type", mapping)),
            ..OneOf::new()
        };
        schemas.insert(self.name.to_owned(), Schema::OneOf(union).into());
    }
}

/// Makes all members of telemetry payloads optional, as the gateway accepts them.
pub(super) fn tolerate_telemetry(schemas: &mut BTreeMap<String, RefOr<Schema>>) {
    for name in TOLERATED {
        if let Some(RefOr::T(Schema::Object(payload))) = schemas.get_mut(name) {
            payload.required.clear();
        }
    }
}

/// `message.delta` → `MessageDelta`.
fn stem_of(kind: &str) -> String {
    let words = kind.split('.').map(|word| {
        let (first, rest) = word.split_at(1.min(word.len()));
        first.to_uppercase() + rest
    });
    words.collect()
}

/// True if a payload has required members.
fn requires(schemas: &BTreeMap<String, RefOr<Schema>>, payload: &str) -> bool {
    matches!(schemas.get(payload), Some(RefOr::T(Schema::Object(payload))) if !payload.required.is_empty())
}

fn member_of(base: &Object, kind: &str, payload: &str, needs_data: bool) -> Object {
    let mut member = base.clone();
    member.description = Some(format!("`{kind}`: see `{payload}`."));
    let own = Object::builder()
        .schema_type(Type::String)
        .enum_values(Some([kind]));
    let data = Ref::from_schema_name(payload);
    member.properties.insert("type".to_owned(), own.into());
    member.properties.insert("data".to_owned(), data.into());
    for name in ["type", "data"] {
        let is_named = member.required.iter().any(|one| one == name);
        if !is_named && (name == "type" || needs_data) {
            member.required.push(name.to_owned());
        }
    }
    member
}
