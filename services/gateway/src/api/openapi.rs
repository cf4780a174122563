//! The OpenAPI documents `gateway.json` and `runner.json`.

mod bounds;
mod defaults;
mod events;
mod examples;
mod general;
mod runner;
pub(super) mod selected;
pub(super) mod served;

use std::collections::BTreeMap;

use protocol::result::{
    ActionRequestedPayload, ArtifactCreatedPayload, GATEWAY_TYPES, MessageCompletedPayload,
    MessageDeltaPayload, ProcessorLogPayload, RunAmendedPayload, RunCompletedPayload,
    RunFailedPayload, RunRestartedPayload, StateUpdatedPayload, ToolCallCompletedPayload,
    ToolCallStartedPayload,
};
use utoipa::openapi::schema::{ArrayItems, Schema};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{Modify, OpenApi};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::api::health;
use events::{TypedUnion, tolerate_telemetry};
use host_api;
use web::state::ApiState;

/// All routes with their documentation.
pub(super) fn documented() -> OpenApiRouter<ApiState> {
    OpenApiRouter::with_openapi(GatewayDocument::openapi())
        .merge(client_api::routes())
        .merge(faces::routes())
        .merge(host_api::routes())
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::jwks))
        .routes(routes!(served::openapi_json))
        .routes(routes!(served::runner_json))
}

/// Ledger events, as clients and runners read them.
const EVENTS: TypedUnion = TypedUnion {
    name: "AgentRunEvent",
    word: "Event",
    own: &GATEWAY_TYPES,
    is_data_optional: false,
};

/// Results, as runners write them.
const RESULTS: TypedUnion = TypedUnion {
    name: "AgentRunResult",
    word: "Result",
    own: &[],
    is_data_optional: true,
};

/// The document of the gateway, committed as `openapi/gateway.json`.
pub fn gateway_document() -> utoipa::openapi::OpenApi {
    let mut document = documented().into_openapi();
    // axum writes a parameter with slashes as `{*key}`, OpenAPI as `{key}`.
    let paths = std::mem::take(&mut document.paths.paths);
    document.paths.paths = paths
        .into_iter()
        .map(|(path, item)| (path.replace("{*", "{"), item))
        .collect();
    general::add_shared_errors(&mut document);
    examples::add_examples(&mut document);
    let components = document.components.get_or_insert_default();
    refer_to_items(&mut components.schemas);
    for union in [EVENTS, RESULTS] {
        union.replace(&mut components.schemas);
    }
    // After the unions, which read the required members of these payloads.
    tolerate_telemetry(&mut components.schemas);
    defaults::move_defaults_to_prose(&mut document);
    bounds::bound(&mut document);
    let components = document.components.get_or_insert_default();
    // Last, because bounds go into the named schemas, and a composed part is a copy.
    open_parts(&mut components.schemas);
    document
}

/// Replaces inlined item schemas of pages (`Page_AgentRun`) by references, so that generated clients have one
/// type for a run.
fn refer_to_items(schemas: &mut BTreeMap<String, RefOr<Schema>>) {
    let names: Vec<String> = schemas.keys().cloned().collect();
    for name in names {
        let of = name.split_once('_').map_or("", |(_, of)| of);
        let Some(item) = schemas.get(of).cloned() else {
            continue;
        };
        let Some(RefOr::T(Schema::Object(list))) = schemas.get_mut(&name) else {
            continue;
        };
        for property in list.properties.values_mut() {
            if let RefOr::T(Schema::Array(array)) = property
                && let ArrayItems::RefOrSchema(items) = &mut array.items
                && **items == item
            {
                **items = Ref::from_schema_name(of).into();
            }
        }
    }
}

/// Opens the parts of a composed schema: `additionalProperties: false` in one part would reject the fields of
/// the others.
fn open_parts(schemas: &mut BTreeMap<String, RefOr<Schema>>) {
    let closed: BTreeMap<String, Schema> = schemas
        .iter()
        .filter_map(|(name, schema)| match schema {
            RefOr::T(Schema::Object(object)) if object.additional_properties.is_some() => {
                let mut open = object.clone();
                open.additional_properties = None;
                let location = Ref::from_schema_name(name).ref_location;
                Some((location, Schema::Object(open)))
            }
            _ => None,
        })
        .collect();
    for schema in schemas.values_mut() {
        let RefOr::T(Schema::AllOf(composed)) = schema else {
            continue;
        };
        for part in &mut composed.items {
            if let RefOr::Ref(reference) = part
                && let Some(open) = closed.get(&reference.ref_location)
            {
                *part = open.clone().into();
            }
        }
    }
}

/// The document of a runner endpoint, committed as `openapi/runner.json`.
pub fn runner_document() -> utoipa::openapi::OpenApi {
    let mut document = runner::RunnerDocument::openapi();
    let components = document.components.get_or_insert_default();
    RESULTS.replace(&mut components.schemas);
    defaults::move_defaults_to_prose(&mut document);
    document
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Runnel gateway",
        description = "Events in, governed agent runs out, every result in the ledger.\n\n\
            Start with `POST /v1/events`. Times (`*_at`) are Unix seconds, durations (`*_ms`) are milliseconds. \
            Optional members may be absent, and responses may gain members: ignore unknown ones.\n\n\
            [The guide](/docs/guide) shows how a client streams, resumes and is generated. \
            [/openapi/runner.json](/openapi/runner.json) is what a runner serves.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    tags(
        (name = "client", description = "Post events, read runs. API key of role client or admin."),
        (name = "admin", description = "Endpoints, runners, agents, catalog, API keys. API key of role admin."),
        (name = "owner", description = "Workspaces. API key of role owner."),
        (name = "host", description = "Calls by runners. Run token."),
        (name = "operation", description = "Health and documents. No credential."),
    ),
    // The members of the unions of events and results.
    components(schemas(
        MessageDeltaPayload,
        MessageCompletedPayload,
        ToolCallStartedPayload,
        ToolCallCompletedPayload,
        ArtifactCreatedPayload,
        StateUpdatedPayload,
        ActionRequestedPayload,
        ProcessorLogPayload,
        RunCompletedPayload,
        RunFailedPayload,
        RunRestartedPayload,
        RunAmendedPayload,
    )),
    modifiers(&SecuritySchemes),
)]
struct GatewayDocument;

struct SecuritySchemes;

impl Modify for SecuritySchemes {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let bearer = |format: &str, description: &str| {
            SecurityScheme::Http(
                HttpBuilder::new()
                    .scheme(HttpAuthScheme::Bearer)
                    .bearer_format(format)
                    .description(Some(description))
                    .build(),
            )
        };
        components.add_security_scheme("api_key", bearer("rnl", "An API key: `rnl_…`."));
        let run_token = bearer("run+jwt", "The token of a live run, from its run request.");
        components.add_security_scheme("run_token", run_token);
    }
}
