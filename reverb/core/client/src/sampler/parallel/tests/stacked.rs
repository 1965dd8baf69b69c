// SPDX-License-Identifier: Apache-2.0
//! Batches that are checked before they are sampled.

use super::*;

fn sampler(server: &Server, in_flight: usize, removes_sampled: bool) -> Sampler {
    let options = SamplerOptions { batch_size: Some(4), ..options(in_flight, 1) };
    let before = async move { Ok(removes_sampled) };
    Sampler::start(&server.client(), server::TABLE, options, before, || {})
}

/// The result of asking for the next items of a batch, at most `missing`.
fn collect_or_fail(sampler: &Sampler, missing: usize) -> std::result::Result<Vec<u64>, String> {
    let mut out = Vec::new();
    match sampler.take(missing, true, &mut out) {
        Ok(_) => Ok(out.iter().map(|sample| sample.key).collect()),
        Err(error) => Err(error.message().to_owned()),
    }
}

#[tokio::test(start_paused = true)]
async fn whole_batches_are_requested_and_only_those_that_fit_ahead() {
    let server = Server::open();
    let sampler = sampler(&server, 10, true);
    settle().await;
    assert_eq!(server.requests(), [(0, 8)]);
    assert_eq!(collect_or_fail(&sampler, 4), Ok(vec![0, 1, 2, 3]));
    settle().await;
    assert_eq!(server.requests(), [(0, 8), (0, 4)]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_too_large_to_be_fetched_ahead_is_asked_for_when_it_is_wanted() {
    let server = Server::open();
    let sampler = sampler(&server, 2, true);
    settle().await;
    assert_eq!(server.requested(), 0);
    assert_eq!(collect_or_fail(&sampler, 4), Ok(vec![]));
    settle().await;
    assert_eq!(server.requests(), [(0, 4)]);
    assert_eq!(collect_or_fail(&sampler, 4), Ok(vec![0, 1, 2, 3]));
}

#[tokio::test(start_paused = true)]
async fn where_items_stay_nothing_changes() {
    let server = Server::open();
    let _sampler = sampler(&server, 10, false);
    settle().await;
    assert_eq!(server.requests(), [(0, 10)]);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_comes_after_what_was_sampled_and_is_the_end() {
    let server = Server::open();
    server.fail_at(4, Error::invalid_argument("cannot be stacked"));
    let sampler = sampler(&server, 10, true);
    settle().await;
    assert_eq!(collect_or_fail(&sampler, 4), Ok(vec![0, 1, 2, 3]));
    settle().await;
    assert_eq!(collect_or_fail(&sampler, 4), Err("cannot be stacked".to_owned()));
    let asked = server.requests();
    assert_eq!(collect(&sampler, 4), (TakeOutcome::End, 0));
    settle().await;
    assert_eq!(server.requests(), asked);
}

#[test]
fn whole_batches_are_requested() {
    let first = Stacking::new(4);
    let counts = |next, wanted: &[usize]| -> Vec<Option<usize>> {
        wanted.iter().map(|&wanted| whole_batches(next, wanted)).collect()
    };
    assert_eq!(counts(first, &[3, 4, 11]), [None, Some(4), Some(8)]);
    // A stream, or the items, may end within a batch.
    assert_eq!(counts(first.after(11), &[0, 1, 6]), [None, Some(1), Some(5)]);
    assert_eq!(counts(first.after(12).before(2), &[9]), [Some(6)]);
}
