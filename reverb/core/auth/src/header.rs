// SPDX-License-Identifier: Apache-2.0
//! Tokens in the header `authorization`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Token of `Bearer TOKEN`; empty, which is no token, for a header of another form.
pub fn bearer_token(header: &str) -> &str {
    of_scheme(header, "bearer").unwrap_or_default()
}

/// Password of `Basic BASE64`, in which browsers send a token; the user name is ignored.
pub fn password(header: &str) -> Option<String> {
    let pair = STANDARD.decode(of_scheme(header, "basic")?).ok()?;
    let pair = String::from_utf8(pair).ok()?;
    pair.split_once(':').map(|(_, password)| password.to_owned())
}

fn of_scheme<'a>(header: &'a str, scheme: &str) -> Option<&'a str> {
    let (its_scheme, rest) = header.trim().split_once(' ')?;
    its_scheme.eq_ignore_ascii_case(scheme).then(|| rest.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_gives_its_token() {
        assert_eq!(bearer_token("Bearer abc"), "abc");
        assert_eq!(bearer_token(" bEARER   abc "), "abc");
        for other in ["", "abc", "Bearer", "Bearer ", "Basic abc", "Bearerabc"] {
            assert_eq!(bearer_token(other), "", "{other}");
        }
    }

    #[test]
    fn a_browser_sends_it_as_a_password() {
        // The user name may be empty or not.
        assert_eq!(password("Basic OmFiYw==").unwrap(), "abc");
        assert_eq!(password("basic bWU6YTpi").unwrap(), "a:b");
        for other in ["", "Basic", "Basic YWJj", "Basic !", "Bearer OmFiYw==", "Basic /w=="] {
            assert_eq!(password(other), None, "{other}");
        }
    }
}
