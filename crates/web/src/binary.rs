//! The schema of binary bodies.

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{KnownFormat, Object, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

/// A binary body. utoipa would describe bytes as a JSON array.
pub struct Binary;

impl PartialSchema for Binary {
    fn schema() -> RefOr<Schema> {
        let format = SchemaFormat::KnownFormat(KnownFormat::Binary);
        let text = Object::builder().schema_type(Type::String);
        text.format(Some(format)).into()
    }
}

impl ToSchema for Binary {}
