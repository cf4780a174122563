//! Parts of the gateway's document for the page of the API: the routes of clients and operators, and those of runners.

use std::collections::BTreeSet;

use serde::Serialize;
use utoipa::openapi::OpenApi;

use super::gateway_document;
use super::general::operations_of;

/// Tag of the routes that runners call.
const HOST: &str = "host";
/// Prefix of a reference to a schema.
const SCHEMAS: &str = "#/components/schemas/";

/// Routes that clients and operators call.
pub(crate) fn client_document() -> OpenApi {
    let mut document = with_tags(|tag| tag != HOST);
    let about = "Start with `POST /v1/events`: press *Authorize*, enter an API key, then *Execute*. *Logout* removes \
        the key from this browser.\n\n\
        **Streams.** This page shows a stream when it has ended. `curl -N`, an `EventSource` and the \
        [packages](guide) show each event as it comes.\n\n\
        The runner routes are in *Host API*, the routes that a runner serves in *Runner*, both at the top of this \
        page. [The guide](guide) shows how a client streams, resumes and is generated; \
        [/openapi.json](../openapi.json) has all routes.";
    document.info.description = Some(about.to_owned());
    document
}

/// Routes that runners call with the token of their run.
pub(crate) fn host_document() -> OpenApi {
    let mut document = with_tags(|tag| tag == HOST);
    "Runnel host API".clone_into(&mut document.info.title);
    let about = "Routes that a runner calls during a run, with the run token of its request. They refuse API keys.";
    document.info.description = Some(about.to_owned());
    document
}

/// The operations whose tag is selected, and the schemas that they need.
fn with_tags(is_selected: impl Fn(&str) -> bool) -> OpenApi {
    let mut document = gateway_document();
    document.paths.paths.retain(|_, item| {
        let mut tags = operations_of(item).flat_map(|operation| operation.tags.iter().flatten());
        tags.all(|tag| is_selected(tag))
    });
    if let Some(tags) = &mut document.tags {
        tags.retain(|tag| is_selected(&tag.name));
    }
    let Some(components) = &mut document.components else {
        return document;
    };
    let mut used = BTreeSet::new();
    let mut new = references(&(&document.paths, &components.responses));
    while let Some(name) = new.pop() {
        if let Some(schema) = components.schemas.get(&name)
            && used.insert(name)
        {
            new.extend(references(schema));
        }
    }
    components.schemas.retain(|name, _| used.contains(name));
    document
}

/// Names of the schemas that a part of a document refers to.
fn references(part: &impl Serialize) -> Vec<String> {
    let text = serde_json::to_string(part).expect("a document has string keys only");
    let names = text.split(SCHEMAS).skip(1);
    let names = names.filter_map(|rest| rest.split('"').next());
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(mut document: OpenApi) -> BTreeSet<String> {
        let items = document.paths.paths.values_mut();
        let operations = items.flat_map(operations_of);
        let tags = operations.flat_map(|operation| operation.tags.clone().unwrap_or_default());
        tags.collect()
    }

    #[test]
    fn page_documents_split_routes_by_caller() {
        assert_eq!(tags(host_document()), BTreeSet::from([HOST.to_owned()]));
        let of_clients = tags(client_document());
        assert!(!of_clients.contains(HOST) && of_clients.contains("client"));
        let paths = |document: OpenApi| document.paths.paths.len();
        let both = paths(client_document()) + paths(host_document());
        assert_eq!(both, paths(gateway_document()));
    }

    #[test]
    fn page_documents_have_exactly_referenced_schemas() {
        for document in [client_document(), host_document()] {
            let components = document.components.as_ref().unwrap();
            let referred: BTreeSet<_> = references(&document).into_iter().collect();
            let named: BTreeSet<_> = components.schemas.keys().cloned().collect();
            assert_eq!(referred, named);
        }
    }
}
