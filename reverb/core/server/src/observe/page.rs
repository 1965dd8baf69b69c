// SPDX-License-Identifier: Apache-2.0
//! Status page: one HTML file that contacts only its own server.

use std::fmt::Write;

use reverb_wire::generated::reverb::StatusResponse;

/// HTML of the page. Browsers without scripts show `{{SERVER}}` and `{{STATES}}`.
const PAGE: &str = include_str!("page/page.html");

/// Content security policy: own script, own styles, and requests to the own server.
pub(crate) const POLICY: &str = concat!(
    "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; ",
    "frame-ancestors 'none'; script-src 'sha256-iUGJm3QA1aD7m+wV7h91TTozKlAvQxyc361yepj2MHs='; style-src 'sha256-a84FLUY2ujodiSbt9dZcAweI1161oNGqEsKjK+sfPLQ='"
);

/// The page for this status.
pub(crate) fn page(status: &StatusResponse) -> String {
    let mut states = String::new();
    for table in &status.tables {
        let diagnosis = table.diagnosis.clone().unwrap_or_default();
        // Writing to a string cannot fail.
        let _ = write!(
            states,
            "<li><b>{}</b><span class=\"state {}\">{}</span><span>{}</span></li>",
            escaped(&table.name),
            diagnosis.state.split(' ').next().unwrap_or_default(),
            escaped(&diagnosis.state),
            escaped(&diagnosis.sentence),
        );
    }
    let server = format!("version {}", escaped(&status.version));
    PAGE.replace("{{SERVER}}", &server).replace("{{STATES}}", &states)
}

/// The text as HTML shows it.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use reverb_base::diagnosis::State;
    use reverb_wire::generated::reverb::{Diagnosis, TableStatus};
    use sha2::{Digest, Sha256};

    use super::*;

    /// Part of the page between two marks.
    fn between(start: &str, end: &str) -> &'static str {
        let (_, rest) = PAGE.split_once(start).unwrap();
        rest.split_once(end).unwrap().0
    }

    #[test]
    fn the_page_has_a_rank_and_a_colour_for_each_state() {
        let ranks = between("const WORST_FIRST = [", ", \"unknown\"]").replace('"', "");
        let worst_first: Vec<_> = State::ALL.iter().rev().map(|(_, name)| *name).collect();
        assert_eq!(ranks, worst_first.join(", "));
        for (_, name) in State::ALL {
            let class = format!(".{}", name.split(' ').next().unwrap());
            let colours =
                between("<style>", "</style>").lines().filter(|line| line.contains("color:"));
            let classes = colours.flat_map(|line| line.split([',', ' ']));
            assert_eq!(classes.filter(|known| *known == class).count(), 1, "{name}");
        }
    }

    #[test]
    fn the_policy_allows_the_script_and_the_styles_of_the_page() {
        for (kind, text) in [
            ("script-src", between("<script>", "</script>")),
            ("style-src", between("<style>", "</style>")),
        ] {
            let hash = STANDARD.encode(Sha256::digest(text));
            let expected = format!("{kind} 'sha256-{hash}'");
            assert!(POLICY.contains(&expected), "after a change of the page: {expected}");
        }
        assert_eq!(PAGE.matches("<script").count(), 1);
        assert_eq!(PAGE.matches("<style").count(), 1);
    }

    #[test]
    fn every_reason_of_items_that_left_is_summed_up() {
        for reason in reverb_engine::Removal::ALL {
            let name = reason.name().replace("sampled_out", "sampledOut");
            assert!(PAGE.contains(&format!("\"{name}\"")), "{name}");
        }
    }

    #[test]
    fn the_page_is_small_and_asks_nobody_else() {
        assert!(PAGE.len() <= 60_000);
        // The name of a namespace is not an address.
        let others = PAGE.replace("http://www.w3.org/2000/svg", "");
        assert!(
            !others.contains("http:") && !others.contains("https:") && !others.contains("//cdn")
        );
        assert!(!PAGE.contains("innerHTML") && !PAGE.contains("eval("));
    }

    #[test]
    fn names_of_tables_are_text() {
        let name = "<img src=x onerror=alert(1)>{{STATES}}\"'&".to_owned();
        let diagnosis =
            Some(Diagnosis { state: "slow readers".to_owned(), sentence: "<b>".to_owned() });
        let table = TableStatus { name, diagnosis, ..TableStatus::default() };
        let page = page(&StatusResponse { tables: vec![table], ..StatusResponse::default() });
        assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;{{STATES}}&quot;&#39;&amp;</b>"));
        assert!(page.contains("class=\"state slow\">slow readers</span><span>&lt;b&gt;</span>"));
        assert!(!page.contains("<img"));
    }
}
