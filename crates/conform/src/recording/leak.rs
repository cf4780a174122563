//! Detects the run's token in the runner's output.

use secrecy::ExposeSecret as _;

use crate::check_harness::PreparedRun;

/// Searches a token in chunked bytes.
pub(super) struct TokenLeakDetector {
    token: Vec<u8>,
    tail: Vec<u8>,
}

impl TokenLeakDetector {
    pub(super) fn new(opened: &PreparedRun) -> Self {
        Self {
            token: opened.token.expose_secret().as_bytes().to_vec(),
            tail: Vec::new(),
        }
    }

    pub(super) fn is_in(&self, bytes: &[u8]) -> bool {
        bytes
            .windows(self.token.len())
            .any(|window| window == self.token)
    }

    pub(super) fn next(&mut self, chunk: &[u8]) -> bool {
        self.tail.extend_from_slice(chunk);
        let found = self.is_in(&self.tail);
        // The token may span two chunks.
        let keep = self.tail.len().min(self.token.len() - 1);
        self.tail.drain(..self.tail.len() - keep);
        found
    }
}
