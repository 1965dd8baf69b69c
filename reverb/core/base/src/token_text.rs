// SPDX-License-Identifier: Apache-2.0
//! Tokens in texts: a token that was typed in a wrong place must not be shown in full.

/// Beginning of every token.
const PREFIX: &str = "rvb_";

/// Number of shown characters of a token.
const SHOWN: usize = 8;

/// Minimum length of a token; shorter words with the prefix are names.
const MIN_TOKEN: usize = 20;

/// The text, with each token in it cut to its first characters.
pub(crate) fn without_tokens(text: String) -> String {
    if !text.contains(PREFIX) {
        return text;
    }
    let is_of_token =
        |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    let mut shown = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find(PREFIX) {
        let length = rest[at..].find(|letter| !is_of_token(letter)).unwrap_or(rest.len() - at);
        let is_token = length >= MIN_TOKEN;
        shown.push_str(&rest[..at + if is_token { SHOWN } else { length }]);
        if is_token {
            shown.push('…');
        }
        rest = &rest[at + length..];
    }
    shown.push_str(rest);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_shown_by_its_beginning_wherever_it_stands() {
        let token = format!("rvb_{}", "aB3-_x7".repeat(6));
        let shown = |text: String| without_tokens(text);
        assert_eq!(shown(token.clone()), "rvb_aB3-…");
        let text = shown(format!("ca /tmp/{token}.crt of grpcs://{token}:1 and {token}"));
        assert_eq!(text, "ca /tmp/rvb_aB3-….crt of grpcs://rvb_aB3-…:1 and rvb_aB3-…");
        assert_eq!(shown(token[..20].to_owned()), "rvb_aB3-…");
        for same in ["", "no token", "table rvb_of_mine", "rvb_", "é rvb_é", "rvb_aB3-…"] {
            assert_eq!(shown(same.to_owned()), same);
        }
    }
}
