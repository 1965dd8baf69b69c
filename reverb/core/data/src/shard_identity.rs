// SPDX-License-Identifier: Apache-2.0
//! A server's place in a group, as recorded in checkpoints and journals.

use std::fmt::Write;
use std::str::FromStr;

/// The shard that a server was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardIdentity {
    /// Name of the group.
    pub group: String,
    /// Index of the shard.
    pub index: u32,
    /// Number of shards of the group.
    pub num_shards: u32,
}

impl ShardIdentity {
    /// Formats it as one word: `INDEX/SHARDS/GROUP`, with the bytes of the name in hexadecimal
    /// digits.
    pub fn to_word(&self) -> String {
        let mut word = format!("{}/{}/", self.index, self.num_shards);
        for byte in self.group.bytes() {
            // Writing to a string cannot fail.
            let _ = write!(word, "{byte:02x}");
        }
        word
    }
}

impl FromStr for ShardIdentity {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        let mut parts = word.splitn(3, '/');
        let mut part = || parts.next().ok_or(());
        let index = part()?;
        let num_shards = part()?;
        let index = index.parse().map_err(drop)?;
        let num_shards = num_shards.parse().map_err(drop)?;
        let digits = part()?.as_bytes().chunks(2);
        let bytes = digits.map(|pair| {
            let pair = std::str::from_utf8(pair).map_err(drop)?;
            u8::from_str_radix(pair, 16).map_err(drop)
        });
        let group = String::from_utf8(bytes.collect::<Result<_, ()>>()?).map_err(drop)?;
        Ok(Self { group, index, num_shards })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_one_word_and_nothing_else_is_one() {
        for group in ["", "replay", "a b/c=\u{e9}"] {
            let shard = ShardIdentity { group: group.to_owned(), index: 3, num_shards: 4 };
            let word = shard.to_word();
            assert!(!word.contains(' '), "{word}");
            assert_eq!(word.parse(), Ok(shard));
        }
        for word in ["", "1", "1/2", "x/2/", "1/-2/", "1/2/6", "1/2/zz", "1/2/ff", "1/2/\u{e9}"] {
            assert_eq!(word.parse::<ShardIdentity>().is_ok(), word == "1/2/6", "{word}");
        }
    }
}
