//! SHA-256 (FIPS 180-4), so that hashes need no dependency and no caller.

use std::fmt::Write as _;

/// The digest of `data`.
pub fn digest(data: &[u8]) -> [u8; 32] {
    let mut state = [
        0x6a09_e667_u32,
        0xbb67_ae85,
        0x3c6e_f372,
        0xa54f_f53a,
        0x510e_527f,
        0x9b05_688c,
        0x1f83_d9ab,
        0x5be0_cd19,
    ];
    let mut blocks = data.chunks_exact(64);
    for block in &mut blocks {
        compress(&mut state, block);
    }
    let rest = blocks.remainder();
    let mut tail = rest.to_vec();
    tail.push(0x80);
    let padded = if rest.len() < 56 { 56 } else { 120 };
    tail.resize(padded, 0);
    tail.extend_from_slice(&(data.len() as u64 * 8).to_be_bytes());
    for block in tail.chunks_exact(64) {
        compress(&mut state, block);
    }
    let mut digest = [0; 32];
    for (out, word) in digest.chunks_exact_mut(4).zip(state) {
        out.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

/// The digest of `data` as 64 hexadecimal digits.
pub fn hex(data: impl AsRef<[u8]>) -> String {
    let mut text = String::with_capacity(64);
    for byte in digest(data.as_ref()) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn compress(state: &mut [u32; 8], block: &[u8]) {
    let mut w = [0_u32; 64];
    for (word, bytes) in w.iter_mut().zip(block.chunks_exact(4)) {
        *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    for i in 16..64 {
        let s0 = w[i - 15].rotate_right(7) ^ w[i - 15].rotate_right(18) ^ (w[i - 15] >> 3);
        let s1 = w[i - 2].rotate_right(17) ^ w[i - 2].rotate_right(19) ^ (w[i - 2] >> 10);
        w[i] = w[i - 16]
            .wrapping_add(s0)
            .wrapping_add(w[i - 7])
            .wrapping_add(s1);
    }
    let mut v = *state;
    for (words, constants) in w.chunks_exact(8).zip(K.chunks_exact(8)) {
        round::<0>(&mut v, words[0].wrapping_add(constants[0]));
        round::<1>(&mut v, words[1].wrapping_add(constants[1]));
        round::<2>(&mut v, words[2].wrapping_add(constants[2]));
        round::<3>(&mut v, words[3].wrapping_add(constants[3]));
        round::<4>(&mut v, words[4].wrapping_add(constants[4]));
        round::<5>(&mut v, words[5].wrapping_add(constants[5]));
        round::<6>(&mut v, words[6].wrapping_add(constants[6]));
        round::<7>(&mut v, words[7].wrapping_add(constants[7]));
    }
    for (word, value) in state.iter_mut().zip(v) {
        *word = word.wrapping_add(value);
    }
}

/// Round `N` of eight: the variables keep their places and swap their roles, so that no value is moved.
#[inline]
fn round<const N: usize>(v: &mut [u32; 8], word: u32) {
    let at = |role: usize| (role + 8 - N) % 8;
    let (a, b, c) = (v[at(0)], v[at(1)], v[at(2)]);
    let (e, f, g) = (v[at(4)], v[at(5)], v[at(6)]);
    let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
    let choice = (e & f) ^ (!e & g);
    let t1 = v[at(7)]
        .wrapping_add(s1)
        .wrapping_add(choice)
        .wrapping_add(word);
    let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
    let majority = (a & b) ^ (a & c) ^ (b & c);
    v[at(3)] = v[at(3)].wrapping_add(t1);
    v[at(7)] = t1.wrapping_add(s0).wrapping_add(majority);
}

#[rustfmt::skip]
const K: [u32; 64] = [
    0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5, 0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5,
    0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3, 0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174,
    0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc, 0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da,
    0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7, 0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967,
    0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13, 0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85,
    0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3, 0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070,
    0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5, 0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3,
    0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208, 0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_match_the_published_vectors() {
        for (data, expected) in [
            (
                "",
                "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            ),
            (
                "abc",
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            ),
            (
                "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
            ),
        ] {
            assert_eq!(hex(data), expected);
        }
        assert_eq!(
            hex("a".repeat(1_000_000)),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"
        );
    }
}
