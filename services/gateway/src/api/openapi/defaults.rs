//! Defaults as prose. Generators give a property with `default` a required type, so that a minimal request would
//! not compile.

use serde_json::Value;
use utoipa::openapi::schema::{AdditionalProperties, ArrayItems, Schema};
use utoipa::openapi::{OpenApi, RefOr};

/// Moves the defaults of all named schemas into their descriptions.
pub(super) fn move_defaults_to_prose(document: &mut OpenApi) {
    let components = document.components.get_or_insert_default();
    components.schemas.values_mut().for_each(describe);
}

fn describe(schema: &mut RefOr<Schema>) {
    let schema = match schema {
        RefOr::Ref(reference) => {
            let mut description = Some(std::mem::take(&mut reference.description));
            moved(&mut reference.default, &mut description);
            reference.description = description.unwrap_or_default();
            return;
        }
        RefOr::T(schema) => schema,
    };
    match schema {
        Schema::Object(object) => {
            moved(&mut object.default, &mut object.description);
            object.properties.values_mut().for_each(describe);
            if let Some(more) = &mut object.additional_properties
                && let AdditionalProperties::RefOr(more) = more.as_mut()
            {
                describe(more);
            }
        }
        Schema::Array(array) => {
            moved(&mut array.default, &mut array.description);
            if let ArrayItems::RefOrSchema(items) = &mut array.items {
                describe(items);
            }
        }
        Schema::OneOf(one) => {
            moved(&mut one.default, &mut one.description);
            one.items.iter_mut().for_each(describe);
        }
        Schema::AllOf(all) => {
            moved(&mut all.default, &mut all.description);
            all.items.iter_mut().for_each(describe);
        }
        Schema::AnyOf(any) => {
            moved(&mut any.default, &mut any.description);
            any.items.iter_mut().for_each(describe);
        }
        _ => {}
    }
}

/// An absent value, `false`, 0 and an empty list need no prose: they are what a reader expects.
fn moved(default: &mut Option<Value>, description: &mut Option<String>) {
    let prose = match default.take() {
        Some(Value::String(text)) if !text.is_empty() => format!("Default: `{text}`."),
        Some(Value::Bool(true)) => "Default: `true`.".to_owned(),
        Some(Value::Array(list)) if !list.is_empty() => {
            format!("Default: `{}`.", Value::Array(list))
        }
        Some(Value::Number(number)) if number.as_i64() != Some(0) => {
            format!("Default: `{number}`.")
        }
        _ => return,
    };
    let has_it = |text: &String| text.to_lowercase().contains("default");
    if description.as_ref().is_some_and(has_it) {
        return;
    }
    let before = description.take().filter(|text| !text.is_empty());
    let before = before.map(|text| text + " ");
    *description = Some(before.unwrap_or_default() + &prose);
}
