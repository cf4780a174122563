//! Bodies of `multipart/form-data`.

use crate::request::FilePart;

/// The content type with its boundary, and the body.
pub(super) fn encode(fields: &[(&'static str, String)], file: &FilePart) -> (String, Vec<u8>) {
    // A random boundary, so that no file can contain it on purpose.
    let boundary = format!("runnel-{}", uuid::Uuid::new_v4().simple());
    let body = body(&boundary, fields, file);
    (format!("multipart/form-data; boundary={boundary}"), body)
}

fn body(boundary: &str, fields: &[(&'static str, String)], file: &FilePart) -> Vec<u8> {
    let mut body = Vec::with_capacity(file.bytes.len() + 1024);
    for (name, value) in fields {
        let head = format!(
            "--{boundary}\r\ncontent-disposition: form-data; name=\"{}\"\r\n\r\n{value}\r\n",
            quoted(name)
        );
        body.extend_from_slice(head.as_bytes());
    }
    let head = format!(
        "--{boundary}\r\ncontent-disposition: form-data; name=\"{}\"; filename=\"{}\"\r\ncontent-type: {}\r\n\r\n",
        quoted(file.field),
        quoted(&file.name),
        // A line break in the type would add a header or end the part.
        without_controls(&file.mime_type),
    );
    body.extend_from_slice(head.as_bytes());
    body.extend_from_slice(&file.bytes);
    body.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    body
}

/// Escapes names as browsers do (WHATWG form encoding).
fn quoted(name: &str) -> String {
    let escaped = name.chars().map(|letter| match letter {
        '"' => "%22".to_owned(),
        '\r' => "%0D".to_owned(),
        '\n' => "%0A".to_owned(),
        letter => letter.to_string(),
    });
    escaped.collect()
}

fn without_controls(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_add_headers() {
        let file = FilePart {
            field: "file",
            name: "a\"\r\nx: 1".to_owned(),
            mime_type: "text/plain\r\ny: 2".to_owned(),
            bytes: b"bytes".to_vec().into(),
        };
        let body = body("b", &[("user", "u".to_owned())], &file);
        assert_eq!(
            String::from_utf8(body).unwrap(),
            "--b\r\ncontent-disposition: form-data; name=\"user\"\r\n\r\nu\r\n\
             --b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a%22%0D%0Ax: 1\"\r\n\
             content-type: text/plainy: 2\r\n\r\nbytes\r\n--b--\r\n"
        );
    }
}
