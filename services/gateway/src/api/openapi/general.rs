//! Shared error responses of operations, each described once. An operation's own responses take precedence.

use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::{Components, ContentBuilder, OpenApi, Ref, Response, ResponseBuilder};

/// Schema name of the common error body.
const ERROR_BODY: &str = "ErrorBody";

/// An error response and its name in the document.
struct SharedErrorResponse {
    status: &'static str,
    name: &'static str,
    description: &'static str,
}

/// Errors of all operations.
const OF_ALL: [SharedErrorResponse; 3] = [
    SharedErrorResponse {
        status: "403",
        name: "Foreign",
        description: "`Host` or `Origin` is not allowed",
    },
    SharedErrorResponse {
        status: "415",
        name: "Encoded",
        description: "The body is compressed: send it without `Content-Encoding`",
    },
    SharedErrorResponse {
        status: "500",
        name: "Failed",
        description: "The gateway failed; its log says why",
    },
];

/// Errors of all operations with a credential.
const OF_CALLERS: [SharedErrorResponse; 4] = [
    SharedErrorResponse {
        status: "400",
        name: "NotValid",
        description: "A header, the URL or the body is not valid; `details.pointer` locates a fault in the body",
    },
    SharedErrorResponse {
        status: "401",
        name: "Unauthenticated",
        description: "The credential is not valid",
    },
    SharedErrorResponse {
        status: "429",
        name: "TooOften",
        description: "A limit is reached; retry after `Retry-After` seconds",
    },
    SharedErrorResponse {
        status: "503",
        name: "Unavailable",
        description: "The database does not respond; retry",
    },
];

const OF_OPERATORS: SharedErrorResponse = SharedErrorResponse {
    status: "403",
    name: "NotAnOperator",
    description: "The API key is not of role admin",
};

const OF_BODIES: [SharedErrorResponse; 2] = [
    SharedErrorResponse {
        status: "408",
        name: "Slow",
        description: "The body was not complete in time",
    },
    SharedErrorResponse {
        status: "413",
        name: "TooLarge",
        description: "The body exceeds the limit of the route",
    },
];

const OF_LATE_RUNS: SharedErrorResponse = SharedErrorResponse {
    status: "504",
    name: "Late",
    description: "The run is past its deadline",
};

const OF_CANCELLED_RUNS: SharedErrorResponse = SharedErrorResponse {
    status: "409",
    name: "Cancelled",
    description: "The run was cancelled",
};

/// Operations that a cancelled run may still call, to see the cancel and to save its work.
const OPEN_IN_GRACE: [&str; 8] = [
    "get_own_run",
    "cancel_own_run",
    "put_state",
    "delete_state",
    "append_results",
    "run_heartbeat",
    "await_interaction",
    "await_platform_action",
];

/// Adds the shared errors to each operation, except for statuses that it describes itself.
pub(super) fn add_shared_errors(document: &mut OpenApi) {
    let operations = document.paths.paths.values_mut().flat_map(operations_of);
    for operation in operations {
        for refusal in shared_errors_of(operation) {
            let name = refusal.status.to_owned();
            let responses = &mut operation.responses.responses;
            let reference = Ref::from_response_name(refusal.name);
            responses.entry(name).or_insert_with(|| reference.into());
        }
    }
    describe(document.components.get_or_insert_default());
}

pub(super) fn operations_of(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let all = [
        &mut item.get,
        &mut item.put,
        &mut item.post,
        &mut item.delete,
        &mut item.patch,
    ];
    all.into_iter().flatten()
}

fn shared_errors_of(operation: &Operation) -> Vec<&'static SharedErrorResponse> {
    let tag = operation.tags.iter().flatten().next();
    let tag = tag.map_or("", String::as_str);
    let mut refusals = Vec::new();
    if tag == "admin" {
        refusals.push(&OF_OPERATORS);
    }
    refusals.extend(&OF_ALL);
    if tag != "operation" {
        refusals.extend(&OF_CALLERS);
    }
    if operation.request_body.is_some() {
        refusals.extend(&OF_BODIES);
    }
    if tag == "host" {
        refusals.push(&OF_LATE_RUNS);
        let id = operation.operation_id.as_deref().unwrap_or_default();
        if !OPEN_IN_GRACE.contains(&id) {
            refusals.push(&OF_CANCELLED_RUNS);
        }
    }
    refusals
}

fn describe(components: &mut Components) {
    let single = [&OF_OPERATORS, &OF_LATE_RUNS, &OF_CANCELLED_RUNS];
    let all = OF_ALL.iter().chain(&OF_CALLERS).chain(&OF_BODIES);
    for refusal in all.chain(single) {
        let described = described(refusal).into();
        components
            .responses
            .insert(refusal.name.to_owned(), described);
    }
}

fn described(refusal: &SharedErrorResponse) -> Response {
    let body = ContentBuilder::new().schema(Some(Ref::from_schema_name(ERROR_BODY)));
    ResponseBuilder::new()
        .description(refusal.description)
        .content("application/json", body.build())
        .build()
}
