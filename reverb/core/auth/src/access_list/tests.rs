// SPDX-License-Identifier: Apache-2.0
//! Meaning of a tokens file, and messages about a bad one.

use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;
use reverb_base::ErrorKind;

use super::*;
use crate::{Reason, Right, TableSet, hash_line, new_token};

const NOW: SystemTime = UNIX_EPOCH;

fn hash(token: &str) -> String {
    format!("sha256:{}", TokenHash::of(token).to_hex())
}

fn problems(text: &str) -> String {
    let error = AccessList::parse(text).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    error.message().to_owned()
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

#[test]
fn a_token_has_the_rights_of_its_line() {
    let (learner, actor) = (hash("1"), hash("2"));
    let text = format!(
        "\u{feff}# who       what           where\r\n\r\n\
         learner sample,update * {learner} # the one of the cluster\r\n  \
         actor   insert  replay,a%20b%2Cc%25,%2A {actor} until=2030-01-01T00:00:00Z\r\n"
    );
    let list = AccessList::parse(&text).unwrap();
    let learner = list.authenticate(Some("1"), &[], NOW).unwrap();
    assert_eq!(learner.name(), "token learner");
    assert!(learner.has(Right::Sample, "any") && learner.has_everywhere(Right::Update));
    assert!(!learner.has(Right::Insert, "any") && !learner.has(Right::Admin, "any"));
    let actor = list.authenticate(Some("2"), &[], NOW).unwrap();
    for table in ["replay", "a b,c%", "*"] {
        assert!(actor.has(Right::Insert, table), "{table}");
    }
    assert!(!actor.has(Right::Insert, "any") && !actor.has_everywhere(Right::Insert));
}

#[test]
fn who_is_not_known_is_told_what_to_do() {
    let list = AccessList::parse(&format!("learner sample * {}", hash("1"))).unwrap();
    let refused = |token: Option<&str>, certificate: &[&str]| {
        let refusal = list.authenticate(token, &names(certificate), NOW).unwrap_err();
        let reason = refusal.reason();
        let error = Error::from(refusal);
        assert_eq!(error.kind(), ErrorKind::Unauthenticated);
        (reason, error.message().to_owned())
    };
    assert_eq!(
        refused(None, &[]),
        (
            Reason::Missing,
            "This server wants a token: give Client(..., token=...) or set REVERB_TOKEN."
                .to_owned()
        )
    );
    let token = new_token().unwrap();
    let (reason, text) = refused(Some(&token), &[]);
    assert_eq!(reason, Reason::Unknown);
    assert_eq!(text, format!("This server does not know this token ({}…).", &token[..8]));
    for secret in ["hunter2", &token[..46], "rvb_", &hash("1")] {
        let text = "This server does not know this token.".to_owned();
        assert_eq!(refused(Some(secret), &[]), (Reason::Unknown, text));
    }
    let (reason, text) = refused(Some(""), &[]);
    assert!(reason == Reason::Unknown && text.ends_with("as: Bearer TOKEN."), "{text}");
    let (reason, text) = refused(None, &["a.example", "spiffe://b"]);
    assert_eq!(reason, Reason::Unknown);
    assert!(text.contains("this certificate (a.example, spiffe://b): "), "{text}");
}

#[test]
fn a_certificate_counts_only_without_a_token() {
    let text = format!(
        "one sample * cert:spiffe://Cluster/Learner\n\
         two insert * cert:Actor.example\n\
         old insert * cert:old until=1970-01-01T00:00:00Z\n\
         three admin * {}",
        hash("3")
    );
    let list = AccessList::parse(&text).unwrap();
    let who = |token, certificate: &[&str]| {
        let known = list.authenticate(token, &names(certificate), NOW);
        known.map(|access| access.name().to_owned()).map_err(|refusal| refusal.reason())
    };
    assert_eq!(who(None, &["spiffe://Cluster/Learner"]).unwrap(), "certificate one");
    assert_eq!(who(None, &["spiffe://cluster/learner"]), Err(Reason::Unknown));
    assert_eq!(who(None, &["other", "ACTOR.example"]).unwrap(), "certificate two");
    let both = ["actor.example", "spiffe://Cluster/Learner"];
    assert_eq!(who(None, &both).unwrap(), "certificate one");
    assert_eq!(who(Some("3"), &both).unwrap(), "token three");
    assert_eq!(who(Some("4"), &both), Err(Reason::Unknown));
    assert_eq!(who(None, &["old"]), Err(Reason::Expired));
}

#[test]
fn what_was_given_is_given_until_its_line_changes_or_its_time_is_over() {
    let of = |text: &str| AccessList::parse(text).unwrap();
    let line = format!("learner sample a {} until=2027-01-31T00:00:00Z", hash("1"));
    let host = "host insert b cert:host";
    let list = of(&format!("{line}\n{host}"));
    let by_token = list.authenticate(Some("1"), &[], NOW).unwrap();
    let by_certificate = list.authenticate(None, &names(&["HOST"]), NOW).unwrap();
    let gives = |list: &AccessList, now| {
        [list.still_gives(&by_token, now), list.still_gives(&by_certificate, now)]
    };
    assert_eq!(gives(&list, NOW), [true, true]);
    assert_eq!(gives(&list, UNIX_EPOCH + Duration::from_secs(1_801_353_600)), [false, true]);
    // The same lines in another file.
    assert_eq!(gives(&of(&format!("# new\n{host}\n{line}")), NOW), [true, true]);
    assert_eq!(gives(&of(&line), NOW), [true, false]);
    assert_eq!(gives(&of(host), NOW), [false, true]);
    // Other tables, other rights.
    for other in [line.replace(" a ", " c "), line.replace("sample", "update")] {
        assert_eq!(gives(&of(&format!("{other}\n{host}")), NOW), [false, true], "{other}");
    }
}

#[test]
fn a_token_expires() {
    let text = format!("learner sample * {} until=2027-01-31T00:00:00Z", hash("1"));
    let list = AccessList::parse(&text).unwrap();
    let end = UNIX_EPOCH + Duration::from_secs(1_801_353_600);
    list.authenticate(Some("1"), &[], end - Duration::from_secs(1)).unwrap();
    let refusal = list.authenticate(Some("1"), &[], end).unwrap_err();
    assert_eq!(refusal.reason(), Reason::Expired);
    assert_eq!(
        Error::from(refusal).message(),
        "The access of token learner expired at 2027-01-31T00:00:00Z: ask for a new one."
    );
}

#[test]
fn all_problems_are_told_with_their_lines() {
    let good = hash("1");
    let text = format!(
        "a sample * {good}\n\
         a sample,delete,INSERT t,,%zz sha256:12 until=tomorrow\n\
         # fine\n\
         a sample\n\
         a sample * {good}\n\
         a sample *,t cert:\n\
         a sample t cert:x\n\
         a sample t cert:X\n\
         a sample t md5:12\n\
         a sample my table {good} until=2027-01-31T00:00:00Z\n\
         a sample * {}\n",
        hash("")
    );
    let text = problems(&text);
    let lines: Vec<&str> = text.lines().collect();
    let expected = [
        "line 2: the second field lists rights out of sample, insert, update and admin, \
         separated by commas, got \"delete\".",
        "line 2: the third field lists tables, separated by commas; the name of one is empty.",
        "line 2: sha256: must be followed by 64 hexadecimal digits, got 2 characters.",
        "line 2: the fifth field must be a time in UTC such as until=2027-01-31T00:00:00Z.",
        "line 4: there are 2 fields instead of the four or five of a line: ",
        "line 5: this is the token of line 1 again.",
        "line 6: the third field is * for all tables, or lists tables; it cannot do both",
        "line 6: cert: must be followed by a subject alternative name of the certificate: the name of \
         a host without *, or a URI; addresses do not count.",
        "line 8: this is the certificate of line 7 again.",
        "line 9: the fourth field must be sha256: and the hash of a token, or cert: ",
        "line 10: there are 6 fields instead of the four or five of a line: ",
        "line 11: this is the hash of an empty text, not of a token.",
    ];
    assert_eq!(lines.len(), expected.len(), "{text}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line}\n{expected}");
    }
    assert!(problems("# nobody\n").contains("nobody could use the server"));
    assert!(problems(&"x\n".repeat(30)).ends_with("There are 10 more problems."));
}

#[test]
fn a_token_in_the_file_is_noticed_and_not_shown() {
    let token = new_token().unwrap();
    let good = hash("1");
    for (text, field) in [
        (format!("learner sample * {token}"), "fourth"),
        (format!("learner sample * sha256:{token}"), "fourth"),
        (format!("learner sample * cert:{token}"), "cert:"),
        (format!("{token} sample * {good}"), "first"),
        (format!("learner {token} * {good}"), "second"),
        (format!("learner sample,{token} * {good}"), "second"),
        (format!("learner sample replay,{token} {good}"), "third"),
        (format!("learner sample * {good} {token}"), "fifth"),
        (format!("learner sample {token}"), "fields"),
        (token.clone(), "field"),
        ("learner sample * hunter2".to_owned(), "fourth"),
        (format!("learner {} * {good}", "hunter2"), "second"),
    ] {
        let text = problems(&text);
        assert!(text.contains(field), "{text}");
        assert!(!text.contains(&token[..12]) && !text.contains("hunter2"), "{text}");
    }
    let text = problems(&format!("learner sample * {token}"));
    assert!(text.contains("printf %s TOKEN | sha256sum"), "{text}");
}

#[test]
fn a_line_that_cannot_be_written_is_refused() {
    let rights = || [Right::Sample].into_iter().collect();
    for name in ["", "a b", "#a", "rvb_a"] {
        let error = hash_line(name, rights(), &TableSet::All, "token").unwrap_err();
        assert!(error.message().starts_with("new token: "), "{error}");
    }
    hash_line("a", [].into_iter().collect(), &TableSet::All, "token").unwrap_err();
    hash_line("a", rights(), &TableSet::Named(names(&[""]).into_iter().collect()), "token")
        .unwrap_err();
}

proptest! {
    #[test]
    fn a_line_that_was_written_is_read_back(
        rights in 1..16u8,
        tables in prop::collection::btree_set(".{1,20}", 1..4),
        table in ".{1,20}",
    ) {
        let set: crate::Rights =
            Right::ALL.into_iter().filter(|&right| rights & 1 << right as u8 != 0).collect();
        let token = new_token().unwrap();
        let line = hash_line("learner", set, &TableSet::Named(tables.clone()), &token).unwrap();
        let list = AccessList::parse(&line).unwrap();
        let access = list.authenticate(Some(&token), &[], NOW).unwrap();
        for right in Right::ALL {
            for name in &tables {
                prop_assert_eq!(access.has(right, name), set.contains(right));
            }
            prop_assert_eq!(access.has(right, &table), set.contains(right) && tables.contains(&table));
            prop_assert!(!access.has_everywhere(right));
        }
    }

    #[test]
    fn any_text_is_read_or_refused_without_the_token_in_it(
        parts in prop::collection::vec(
            prop_oneof![
                Just(None),
                "(sample|insert|,|\\*|sha256:|cert:|until=|#| |\n|a|%|2)".prop_map(Some),
                "\\PC{0,6}".prop_map(Some),
            ],
            0..20,
        ),
    ) {
        let token = new_token().unwrap();
        let text: String = parts.iter().map(|part| part.as_deref().unwrap_or(&token)).collect();
        if let Err(error) = AccessList::parse(&text) {
            prop_assert!(!error.message().contains(&token[..12]));
        }
    }
}
