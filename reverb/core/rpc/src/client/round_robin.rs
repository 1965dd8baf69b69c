// SPDX-License-Identifier: Apache-2.0
//! Round robin over the servers of a target, separately for each path.
//!
//! With one counter for all paths, a program that makes a unary call before each stream would open
//! all its streams at the same server. The first server is random: otherwise all processes would
//! begin with the same one.

use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;

/// Round robin over the servers of a target.
pub(super) struct RoundRobin {
    /// First index of each path.
    start: usize,
    /// Next index, by the path of the call.
    next: Mutex<Vec<(String, usize)>>,
}

impl RoundRobin {
    pub(super) fn new() -> Self {
        Self { start: RandomState::new().hash_one(0) as usize, next: Mutex::default() }
    }

    /// The index of the server that gets the next call with this path; `num_servers` is at least 1.
    pub(super) fn next(&self, path: &str, num_servers: usize) -> usize {
        if num_servers == 1 {
            return 0;
        }
        let mut next = self.next.lock();
        let at = next.iter().position(|(known, _)| known == path).unwrap_or_else(|| {
            next.push((path.to_owned(), self.start));
            next.len() - 1
        });
        let (_, turn) = &mut next[at];
        let this = *turn;
        *turn = turn.wrapping_add(1);
        this % num_servers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_call_goes_to_all_in_turn() {
        for num_servers in 1..5 {
            let turns = RoundRobin::new();
            let mut inserts = Vec::new();
            let mut infos = Vec::new();
            for _ in 0..num_servers {
                infos.push(turns.next("info", num_servers));
                infos.push(turns.next("info", num_servers));
                inserts.push(turns.next("insert", num_servers));
            }
            assert_eq!(infos[..num_servers], inserts[..], "both begin with the same one");
            inserts.sort_unstable();
            assert_eq!(inserts, (0..num_servers).collect::<Vec<_>>());
        }
    }

    #[test]
    fn processes_begin_with_different_servers() {
        for num_servers in [2, 3] {
            let mut counts = vec![0_usize; num_servers];
            for _ in 0..1000 {
                counts[RoundRobin::new().next("insert", num_servers)] += 1;
            }
            // One standard deviation is about 16.
            assert!(counts.iter().all(|it| it.abs_diff(1000 / num_servers) < 130), "{counts:?}");
        }
    }
}
