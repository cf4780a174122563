//! `[[sources]]`: systems that post events.

use domain::source::check_source;
use protocol::source::{SignatureEncoding, SourceScheme, SourceSpec};

use super::secret_ref::SecretRef;
use super::table::{Reported, Table, name, one_of, parsed, text};
use super::webhook::read_agents;

const SCHEMES: [&str; 9] = {
    let mut names = [""; 9];
    let mut index = 0;
    while index < names.len() {
        names[index] = SourceScheme::ALL[index].as_str();
        index += 1;
    }
    names
};

/// A source, and the reference to its secret.
#[derive(Clone, Debug)]
pub struct SourceEntry {
    /// Without the secret.
    pub spec: SourceSpec,
    pub secret: SecretRef,
}

impl SourceEntry {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let name = table.required("name", name);
        let scheme = table.required("scheme", one_of(&SCHEMES));
        let secret = table.required("secret", parsed);
        let header = table.optional("header", text);
        let prefix = table.optional("prefix", text);
        let encoding = table.optional("encoding", one_of(&["hex", "base64"]));
        let filter = table.required("filter", text);
        let dedupe = table.optional("dedupe", text);
        let agents = read_agents(&mut table);
        let spec = (|| {
            Ok(SourceSpec {
                name: name?,
                // `one_of` has checked it.
                scheme: SourceScheme::parse(&scheme?).unwrap_or(SourceScheme::Hmac),
                secret: None,
                header: header?,
                prefix: prefix?,
                encoding: encoding?.map(|encoding| match encoding.as_str() {
                    "base64" => SignatureEncoding::Base64,
                    _ => SignatureEncoding::Hex,
                }),
                filter: filter?,
                dedupe: dedupe?,
                agents: agents?,
            })
        })();
        let mut shape = Ok(());
        for fault in spec.iter().flat_map(check_source) {
            let key = fault.pointer.trim_start_matches('/').to_owned();
            shape = Err(table.fault(&key, fault.message));
        }
        table.close()?;
        shape?;
        Ok(Self {
            spec: spec?,
            secret: secret?,
        })
    }
}
