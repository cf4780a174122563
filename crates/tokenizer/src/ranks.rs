//! The tokens of a vocabulary, in the order in which they are merged.

use std::io::{BufRead as _, BufReader};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use flate2::bufread::GzDecoder;
use foldhash::fast::FixedState;
use hashbrown::HashTable;
use std::hash::BuildHasher as _;

/// The hash need not resist attacks: requests only look tokens up.
const HASH: FixedState = FixedState::with_seed(0);

/// Ranks by the bytes of tokens: one buffer, one offset and one table entry for each token, five bytes a piece.
pub(super) struct Ranks {
    bytes: Vec<u8>,
    /// Start of each token in `bytes`, and the end of the last one.
    starts: Vec<u32>,
    table: HashTable<u32>,
    longest: usize,
}

impl Ranks {
    /// Reads a compressed vocabulary: one line a token, its bytes as base64 and its rank, which is the number of the line.
    pub(super) fn unpack(compressed: &[u8]) -> Self {
        let mut bytes = Vec::new();
        let mut starts = vec![0];
        let mut lines = BufReader::new(GzDecoder::new(compressed));
        let mut line = String::new();
        while lines.read_line(&mut line).expect("the file is a constant") > 0 {
            let token = line.split(' ').next().unwrap_or_default();
            BASE64_STANDARD
                .decode_vec(token, &mut bytes)
                .expect("the file is a constant");
            starts.push(position(bytes.len()));
            line.clear();
        }
        bytes.shrink_to_fit();
        starts.shrink_to_fit();
        let mut ranks = Self {
            table: HashTable::with_capacity(starts.len()),
            longest: starts
                .windows(2)
                .map(|ends| (ends[1] - ends[0]) as usize)
                .max()
                .unwrap_or(0),
            bytes,
            starts,
        };
        ranks.fill_table();
        ranks
    }

    fn fill_table(&mut self) {
        let mut table = std::mem::take(&mut self.table);
        for rank in 0..position(self.starts.len() - 1) {
            let hash = HASH.hash_one(self.token(rank));
            table.insert_unique(hash, rank, |other| HASH.hash_one(self.token(*other)));
        }
        self.table = table;
    }

    /// Rank of a token; lower ranks are merged first.
    pub(super) fn get(&self, token: &[u8]) -> Option<u32> {
        if token.len() > self.longest {
            return None;
        }
        let is_token = |rank: &u32| self.token(*rank) == token;
        self.table.find(HASH.hash_one(token), is_token).copied()
    }

    fn token(&self, rank: u32) -> &[u8] {
        let rank = rank as usize;
        &self.bytes[self.starts[rank] as usize..self.starts[rank + 1] as usize]
    }
}

fn position(value: usize) -> u32 {
    u32::try_from(value).expect("a vocabulary has a few megabytes")
}
