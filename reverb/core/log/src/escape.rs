// SPDX-License-Identifier: Apache-2.0
//! Text of peers in a log: it stays on one line, and contains no control characters.

use std::fmt::Write;

/// Maximum length; longer texts are cut, because a peer chooses the length of its table name.
const MAX_CHARS: usize = 4_000;

/// Returns true for a character with side effects: it ends a line, begins an escape sequence, or
/// changes the direction of the text after it.
pub(crate) fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        )
}

/// The text with unsafe characters as escapes, cut if it is very long.
pub(crate) fn escaped(text: &str) -> String {
    let is_clean = |character: char| !is_unsafe(character);
    if text.len() <= MAX_CHARS && text.chars().all(is_clean) {
        return text.to_owned();
    }
    let mut escaped = String::with_capacity(text.len().min(MAX_CHARS));
    for character in cut(text) {
        if is_clean(character) {
            escaped.push(character);
        } else {
            escaped.extend(character.escape_default());
        }
    }
    escaped
}

/// Appends the value of a field: unchanged if it is a plain word, otherwise in quotes.
pub(crate) fn push_value(line: &mut String, text: &str) {
    let is_plain =
        |character: char| character.is_alphanumeric() || "_-./:@[]%+".contains(character);
    let is_word = !text.is_empty() && text.chars().all(is_plain) && !text.ends_with(':');
    if is_word && text.len() <= MAX_CHARS {
        return line.push_str(text);
    }
    line.push('"');
    for character in cut(text) {
        match character {
            '"' | '\\' => line.extend(['\\', character]),
            _ if is_unsafe(character) => line.extend(character.escape_default()),
            _ => line.push(character),
        }
    }
    line.push('"');
}

pub(crate) fn push_json(line: &mut String, text: &str) {
    line.push('"');
    for character in cut(text) {
        match character {
            '"' | '\\' => line.extend(['\\', character]),
            '\n' => line.push_str("\\n"),
            _ if is_unsafe(character) => {
                // These characters fit into one unit of UTF-16.
                let _ = write!(line, "\\u{:04x}", u32::from(character));
            }
            _ => line.push(character),
        }
    }
    line.push('"');
}

fn cut(text: &str) -> impl Iterator<Item = char> {
    let is_long = text.chars().nth(MAX_CHARS).is_some();
    text.chars().take(MAX_CHARS).chain(is_long.then_some('…'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_break_a_line_is_escaped() {
        assert_eq!(
            escaped("a\nb\r\t\u{1b}[31m\u{9b}\u{2028}\u{202e}é"),
            "a\\nb\\r\\t\\u{1b}[31m\\u{9b}\\u{2028}\\u{202e}é"
        );
    }

    #[test]
    fn values_are_words_or_quoted() {
        for (value, expected) in [
            ("replay", "replay"),
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("/a/b-c_d", "/a/b-c_d"),
            ("größe", "größe"),
            ("", "\"\""),
            ("a b", "\"a b\""),
            ("a:", "\"a:\""),
            ("a=b", "\"a=b\""),
            ("a\"\\\n", "\"a\\\"\\\\\\n\""),
        ] {
            let mut line = String::new();
            push_value(&mut line, value);
            assert_eq!(line, expected);
        }
    }

    #[test]
    fn long_texts_are_cut() {
        let long = "ä".repeat(MAX_CHARS + 1);
        let expected = format!("{}…", "ä".repeat(MAX_CHARS));
        assert_eq!(escaped(&long), expected);
        let mut line = String::new();
        push_value(&mut line, &long);
        assert_eq!(line, format!("\"{expected}\""));
        let exact = "ä".repeat(MAX_CHARS);
        assert_eq!(escaped(&exact), exact);
    }
}
