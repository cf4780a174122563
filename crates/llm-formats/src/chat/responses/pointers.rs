//! Source map from a chat body to the request from which it was built.

/// Pointers into a chat body with their request pointers: one entry per message, and one per part of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct PointerMap(Vec<(String, String)>);

impl PointerMap {
    /// Maps the chat pointer `chat` to the request pointer `request`.
    pub(crate) fn add(&mut self, chat: String, request: String) {
        self.0.push((chat, request));
    }

    /// Moves all messages back by one, for a message that comes first.
    pub(super) fn shift_messages(&mut self) {
        for (chat, _) in &mut self.0 {
            let Some(path) = chat.strip_prefix("/messages/") else {
                continue;
            };
            let (n, rest) = match path.split_once('/') {
                Some((n, rest)) => (n, format!("/{rest}")),
                None => (path, String::new()),
            };
            if let Ok(n) = n.parse::<usize>() {
                *chat = format!("/messages/{}{rest}", n + 1);
            }
        }
    }

    /// Returns the request pointer for a chat pointer. An unmapped pointer stays unchanged.
    pub(crate) fn of(&self, pointer: &str) -> String {
        // `/messages/1` must not match `/messages/10`.
        let leads = |(chat, request): &(String, String)| {
            let rest = pointer.strip_prefix(chat.as_str())?;
            (rest.is_empty() || rest.starts_with('/')).then(|| (chat.len(), request.clone(), rest))
        };
        // The longest match is the most specific.
        let found = self.0.iter().filter_map(leads).max_by_key(|found| found.0);
        match found {
            Some((_, request, rest)) => request + in_part(rest),
            None => pointer.to_owned(),
        }
    }

    /// Returns the pointer of each image in the chat body, with the pointer of its URL in the request.
    pub(super) fn images(&self) -> impl Iterator<Item = (String, String)> {
        self.0.iter().map(|(chat, request)| {
            (
                format!("{chat}/image_url/url"),
                format!("{request}/image_url"),
            )
        })
    }
}

/// Maps a pointer below a chat part to the request's names.
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
        let mut pointers = PointerMap::default();
        pointers.add("/messages/1".to_owned(), "/input/0".to_owned());
        pointers.add(
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
            assert_eq!(pointers.of(chat), request);
        }
    }
}
