//! `[audit]`: export of administrative changes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;
use url::Url;

use super::endpoint::read_headers;
use super::secret_ref::SecretRef;
use super::table::{Reported, Table, name, text};
use egress::parse_plain_url;

/// `[audit.export]`.
#[derive(Clone, Debug)]
pub enum ChangeExportEntry {
    /// The file that changes are appended to.
    File(PathBuf),
    /// The receiver of requests, with headers by lower-case name.
    Http {
        url: Url,
        headers: BTreeMap<String, SecretRef>,
    },
}

/// Reads `[audit]`. `None`: nothing is exported.
pub(super) fn read(mut table: Table<'_>) -> Result<Option<ChangeExportEntry>, Reported> {
    let export = table.section_if_any("export", read_export);
    table.close()?;
    export
}

fn read_export(mut table: Table<'_>) -> Result<ChangeExportEntry, Reported> {
    let file = table.optional("file", |value| name(value).map(PathBuf::from));
    let url = table.optional("url", url);
    let headers = read_headers(&mut table);
    let has_both = matches!((&file, &url), (Ok(Some(_)), Ok(Some(_))));
    let has_none = matches!((&file, &url), (Ok(None), Ok(None)));
    let one = table.demand(
        "file",
        !has_both && !has_none,
        "set either file or url of audit.export",
    );
    let has_idle = matches!((&file, &headers), (Ok(Some(_)), Ok(all)) if !all.is_empty());
    let idle = table.demand("headers", !has_idle, "has no effect with a file");
    table.close()?;
    one.and(idle)?;
    match (file?, url?) {
        (_, Some(url)) => Ok(ChangeExportEntry::Http {
            url,
            headers: headers?,
        }),
        (Some(file), None) => Ok(ChangeExportEntry::File(file)),
        (None, None) => Err(Reported),
    }
}

fn url(value: Value) -> Result<Url, String> {
    parse_plain_url(&text(value)?).map_err(|error| error.to_string())
}
