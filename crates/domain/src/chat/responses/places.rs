//! Where the parts of a chat body stand in the request that it was made of.

/// Pointers into a chat body and the places of the request that they stand for. Cheap to build: one entry for each
/// message, and one for each part of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Places(Vec<(String, String)>);

impl Places {
    /// `chat` was made of what stands at `request`.
    pub(super) fn add(&mut self, chat: String, request: String) {
        self.0.push((chat, request));
    }

    /// The place of the request for a pointer into the chat body. A pointer that leads nowhere known stays as it is.
    pub(super) fn of(&self, pointer: &str) -> String {
        let leads = |(chat, request): &(String, String)| {
            let rest = pointer.strip_prefix(chat.as_str())?;
            (rest.is_empty() || rest.starts_with('/')).then(|| (chat.len(), request.clone(), rest))
        };
        let found = self.0.iter().filter_map(leads).max_by_key(|found| found.0);
        match found {
            Some((_, request, rest)) => request + in_part(rest),
            None => pointer.to_owned(),
        }
    }

    /// Each image of the chat body by its pointer, and the pointer of its URL in the request.
    pub(super) fn images(&self) -> impl Iterator<Item = (String, String)> {
        self.0.iter().map(|(chat, request)| {
            (
                format!("{chat}/image_url/url"),
                format!("{request}/image_url"),
            )
        })
    }
}

/// A pointer below a part of a chat message, as the part of a request has it.
fn in_part(rest: &str) -> &str {
    match rest {
        "/image_url/url" => "/image_url",
        "/file/file_data" => "/file_data",
        "/file/filename" => "/filename",
        rest => rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_a_pointer_by_its_longest_prefix() {
        let mut places = Places::default();
        places.add("/messages/1".to_owned(), "/input/0".to_owned());
        places.add(
            "/messages/1/content/0".to_owned(),
            "/input/0/content/2".to_owned(),
        );
        for (chat, request) in [
            ("/messages/1", "/input/0"),
            (
                "/messages/1/content/0/image_url/url",
                "/input/0/content/2/image_url",
            ),
            (
                "/messages/1/content/0/file/file_data",
                "/input/0/content/2/file_data",
            ),
            ("/messages/10", "/messages/10"),
            ("/temperature", "/temperature"),
        ] {
            assert_eq!(places.of(chat), request);
        }
    }
}
