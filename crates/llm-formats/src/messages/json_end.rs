//! Detects the end of a JSON object that arrives in pieces.

/// Tracks brackets and strings of one object, in constant time for each byte.
#[derive(Debug, Default)]
pub(super) struct JsonEnd {
    depth: u32,
    has_begun: bool,
    in_string: bool,
    is_escaped: bool,
}

impl JsonEnd {
    /// Reads the next piece.
    pub(super) fn read(&mut self, piece: &str) {
        for byte in piece.bytes() {
            if self.is_escaped {
                self.is_escaped = false;
                continue;
            }
            match byte {
                // Backslashes escape only within strings.
                b'\\' if self.in_string => self.is_escaped = true,
                b'"' => self.in_string = !self.in_string,
                b'{' | b'[' if !self.in_string => {
                    self.has_begun = true;
                    self.depth = self.depth.saturating_add(1);
                }
                // Surplus brackets must not underflow.
                b'}' | b']' if !self.in_string => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }

    /// Returns true if all brackets are closed.
    pub(super) fn is_complete(&self) -> bool {
        // Before its first bracket, nothing is complete.
        self.has_begun && self.depth == 0 && !self.in_string
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_ends_with_its_last_bracket() {
        for (pieces, is_complete) in [
            (&[][..], false),
            (&["{}"], true),
            (&["{\"a\":", "[1,{}", "]}"], true),
            (&["{\"a\":", "[1,{}", "]"], false),
            (&["{\"}\\", "\"}\":1"], false),
            (&["{\"}\\", "\"}\":1}"], true),
            (&["  "], false),
        ] {
            let mut end = JsonEnd::default();
            for piece in pieces {
                end.read(piece);
            }
            assert_eq!(end.is_complete(), is_complete, "{pieces:?}");
        }
    }
}
