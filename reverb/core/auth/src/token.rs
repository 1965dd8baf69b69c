// SPDX-License-Identifier: Apache-2.0
//! Tokens and their hashes.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reverb_base::{Error, Result};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

/// Beginning of every token, so that scanners for secrets find it.
pub(crate) const PREFIX: &str = "rvb_";

const RANDOM_BYTES: usize = 32;

/// Length of a token in characters: the prefix, and the bytes in base64.
const LENGTH: usize = PREFIX.len() + (RANDOM_BYTES * 4).div_ceil(3);

/// Number of characters of a token that its owner is shown, to distinguish it from others.
const SHOWN: usize = 8;

/// Creates a token: 32 random bytes in base64 for URLs, with the prefix `rvb_`.
///
/// # Errors
///
/// `Internal` if the system has no random numbers.
pub fn new_token() -> Result<String> {
    let mut bytes = [0; RANDOM_BYTES];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| Error::internal("The system gives no random numbers for a token."))?;
    Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// Replacement of a token in a tokens file: `sha256:` and 64 hexadecimal digits.
pub fn token_hash(token: &str) -> String {
    format!("sha256:{}", TokenHash::of(token).to_hex())
}

/// SHA-256 of a token. It reveals nothing, since tokens are random, so comparing needs no constant
/// time.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TokenHash([u8; 32]);

impl TokenHash {
    pub(crate) fn of(token: &str) -> Self {
        let hash = digest(&SHA256, token.as_bytes());
        Self(hash.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let digits: Option<Vec<u8>> =
            text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
        let bytes: Vec<u8> =
            digits?.chunks(2).map(|pair| pair[0] << 4 | pair[1 % pair.len()]).collect();
        (text.len() == 64).then(|| bytes.try_into().ok().map(Self))?
    }

    pub(crate) fn to_hex(self) -> String {
        use std::fmt::Write;
        self.0.iter().fold(String::with_capacity(64), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

pub(crate) fn is_token(text: &str) -> bool {
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    text.len() == LENGTH && text.starts_with(PREFIX) && text.bytes().all(is_base64)
}

/// First characters of a token, for its owner; `None` for a text that may be another secret.
pub(crate) fn shown(token: &str) -> Option<String> {
    is_token(token).then(|| format!("{}…", &token[..SHOWN]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_random_and_have_one_form() {
        let one = new_token().unwrap();
        let other = new_token().unwrap();
        assert_ne!(one, other);
        assert!(is_token(&one) && one.len() == 47, "{one}");
        assert_eq!(shown(&one).unwrap(), format!("{}…", &one[..8]));
    }

    #[test]
    fn nothing_is_shown_of_what_is_no_whole_token() {
        let token = new_token().unwrap();
        for text in ["", "password", &token[1..], &token[..46], &format!("{token}="), "rvb_"] {
            assert_eq!(shown(text), None, "{text}");
        }
    }

    #[test]
    fn hashes_are_those_of_sha256sum() {
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(TokenHash::of("abc").to_hex(), hash);
        assert!(TokenHash::from_hex(&hash.to_uppercase()) == Some(TokenHash::of("abc")));
        for bad in ["", &hash[1..], &format!("{hash}0"), &hash.replace('b', "g"), "é"] {
            assert!(TokenHash::from_hex(bad).is_none(), "{bad}");
        }
    }
}
