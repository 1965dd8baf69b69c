// SPDX-License-Identifier: Apache-2.0
//! The calls of a shard of a group, over the network and in its own process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::*;
use reverb_base::ErrorKind;
use reverb_data::{MemoryConfig, NewItem, SelectorConfig, StoredItem, TableConfig};
use reverb_engine::Table;
use reverb_rpc::target::Loopback;
use reverb_server::{Server, local_shard};
use reverb_wire::generated::TableInfo;
use reverb_wire::generated::reverb as own;
use reverb_wire::shard::{Shard, WatchStream};
use reverb_wire::transport::{ScanOptions, Transport as _};

/// The server over the network, and directly.
fn both(server: &Server) -> [Arc<dyn Shard>; 2] {
    let local = local_shard(Loopback::localhost(server.port())).unwrap();
    [Arc::new(client(server)), local]
}

fn add(table: &Table, items: Vec<NewItem>) {
    table.insert(items, &quiet()).unwrap();
}

fn some(key: u64, priority: f64) -> NewItem {
    item(key, "t", priority, &[chunk(key | 1, &[1])])
}

fn prioritized(name: &str) -> TableConfig {
    let sampler = SelectorConfig::prioritized(2.0);
    TableConfig { sampler, ..config(name) }
}

/// A key of a slot.
fn key(slot: u64, low: u64) -> u64 {
    slot << 52 | low
}

fn range(first: i32, count: i32, owner: i32, former_owners: &[i32]) -> own::SlotRange {
    own::SlotRange { first, count, owner, former_owners: former_owners.to_vec() }
}

/// A group of two, each with a half of the slots.
fn two_shards(epoch: i64) -> own::ShardMap {
    let shard = |index| own::Shard { index, ..own::Shard::default() };
    own::ShardMap {
        epoch,
        group: "g".to_owned(),
        shards: vec![shard(0), shard(1)],
        slots: vec![range(0, 2048, 0, &[]), range(2048, 2048, 1, &[])],
        ..own::ShardMap::default()
    }
}

fn ask() -> own::DirectoryRequest {
    own::DirectoryRequest::default()
}

async fn next(watch: &mut Box<dyn WatchStream>) -> own::WatchResponse {
    soon(watch.receive()).await.unwrap().unwrap()
}

/// Reads until a condition holds.
async fn until(
    watch: &mut Box<dyn WatchStream>,
    mut holds: impl FnMut(&own::WatchedTable) -> bool,
) -> own::WatchedTable {
    loop {
        if let Some(found) = next(watch).await.tables.into_iter().find(&mut holds) {
            return found;
        }
    }
}

#[tokio::test]
async fn a_server_without_a_group_tells_its_id() {
    let server = start(vec![table(config("t"))]);
    let other = start(vec![table(config("t"))]);
    let [remote, local] = both(&server);
    let told = remote.call(ask()).await.unwrap();
    assert_eq!((&told.map, told.index), (&None, None));
    assert_ne!(told.server_id, 0);
    assert_eq!(local.call(ask()).await.unwrap(), told);
    assert_eq!(remote.server_info().await.unwrap().tables_state_id.0, told.server_id);
    assert_ne!(client(&other).call(ask()).await.unwrap().server_id, told.server_id);
}

#[tokio::test]
async fn a_shard_tells_how_full_its_tables_are_and_where_a_writer_begins() {
    let by_size = table(TableConfig { max_size: 8, ..config("t") });
    let by_bytes = TableConfig { max_size: 1000, ..config("u") };
    let by_bytes = table(TableConfig {
        memory: MemoryConfig { max_bytes: Some(1000), ..MemoryConfig::default() },
        ..by_bytes
    });
    add(&by_size, vec![some(1, 1.0), some(2, 1.0)]);
    add(&by_bytes, vec![item(3, "u", 1.0, &[chunk(3, &[1])])]);
    let bytes = by_bytes.bytes();
    let server = start(vec![by_size, by_bytes]);
    for shard in both(&server) {
        let tables = ["u", "t", "gone"].map(str::to_owned).to_vec();
        let told = shard.call(own::DirectoryRequest { tables, ..ask() }).await.unwrap();
        let shares: Vec<_> = told.fills.iter().map(|it| (&it.name[..], it.share)).collect();
        assert_eq!(shares, [("t", 0.25), ("u", bytes as f64 / 1000.0)]);
        assert_eq!((told.num_writers, told.writer_place), (0, None));

        let place = |index, share| own::WriterPlace { index, share, num_writers: 1 };
        let writer_places = vec![place(4, 0.5), place(7, 0.2)];
        let told = shard.call(own::DirectoryRequest { writer_places, ..ask() }).await.unwrap();
        assert_eq!((told.fills, told.writer_place), (vec![], Some(7)));
    }
    let writer = client(&server).open_insert().await.unwrap();
    let shard = client(&server);
    while shard.call(ask()).await.unwrap().num_writers == 0 {
        tokio::task::yield_now().await;
    }
    drop(writer);
}

#[tokio::test]
async fn a_map_that_the_caller_has_is_left_out() {
    let server = start(vec![table(config("t"))]);
    for (shard, epoch) in both(&server).into_iter().zip(1..) {
        let request = own::SetDirectoryRequest { map: Some(two_shards(epoch)), index: 1 };
        shard.call(request).await.unwrap();
        for (known_epoch, is_told) in [(epoch, false), (epoch - 1, true), (epoch + 1, true)] {
            let request = own::DirectoryRequest { known_epoch, ..ask() };
            let told = shard.call(request).await.unwrap();
            assert_eq!((told.map.is_some(), told.index), (is_told, Some(1)));
        }
    }
}

#[tokio::test]
async fn a_newer_map_of_the_same_group_replaces_the_map() {
    let server = start(vec![table(config("t"))]);
    for shard in both(&server) {
        let epoch = shard.call(ask()).await.unwrap().map.map_or(0, |map| map.epoch) + 2;
        let set = |map: own::ShardMap| {
            let request = own::SetDirectoryRequest { map: Some(map), index: 1 };
            shard.call(request)
        };
        set(two_shards(epoch)).await.unwrap();
        let told = shard.call(ask()).await.unwrap();
        assert_eq!((told.map, told.index), (Some(two_shards(epoch)), Some(1)));
        // The same once more changes nothing.
        set(two_shards(epoch)).await.unwrap();
        let mut other = two_shards(epoch);
        other.slots = vec![range(0, 2000, 0, &[]), range(2000, 2096, 1, &[])];
        let text = format!("another map of epoch {epoch}: two have changed the group");
        refused(set(other).await, ErrorKind::FailedPrecondition, &text);
        refused(
            set(two_shards(epoch - 1)).await,
            ErrorKind::FailedPrecondition,
            &format!("epoch {} is older", epoch - 1),
        );
        let stranger = own::ShardMap { group: "h".to_owned(), ..two_shards(epoch + 1) };
        refused(set(stranger).await, ErrorKind::FailedPrecondition, "takes no map of group \"h\"");
        let mut elsewhere = two_shards(epoch + 1);
        elsewhere.shards[1].server_id = told.server_id ^ 1;
        refused(set(elsewhere).await, ErrorKind::FailedPrecondition, "meant for another server");
        assert_eq!(shard.call(ask()).await.unwrap().map, Some(two_shards(epoch)));
    }
}

#[tokio::test]
async fn a_map_with_a_fault_is_refused() {
    let server = start(vec![table(config("t"))]);
    let shard = client(&server);
    let with_slots = |slots: Vec<own::SlotRange>| own::ShardMap { slots, ..two_shards(1) };
    let mut twice = two_shards(1);
    twice.shards[1].index = 0;
    let mut heavy = two_shards(1);
    heavy.shards[0].weight = f64::NAN;
    for (map, index, text) in [
        (two_shards(0), 0, "epoch of a map must be at least 1, got 0"),
        (two_shards(1), 2, "The map has no shard 2, which this server is said to be."),
        (twice, 0, "different indices"),
        (heavy, 0, "weight of shard 0"),
        (with_slots(vec![range(0, 2048, 0, &[])]), 0, "slot 2048 has no owner"),
        (with_slots(vec![range(1, 4095, 0, &[])]), 0, "slot 0 has no owner"),
        (
            with_slots(vec![range(0, 3000, 0, &[]), range(2999, 1097, 1, &[])]),
            0,
            "slot 2999 has two owners",
        ),
        (with_slots(vec![range(0, 4097, 0, &[])]), 0, "slots are the numbers from 0 to 4095"),
        (with_slots(vec![range(0, i32::MAX, 0, &[])]), 0, "slots are the numbers"),
        (with_slots(vec![range(0, 4096, 7, &[])]), 0, "no shard 7, which owns the slots from 0"),
    ] {
        let request = own::SetDirectoryRequest { map: Some(map), index };
        refused(shard.call(request).await, ErrorKind::InvalidArgument, text);
    }
    let none = own::SetDirectoryRequest { map: None, index: 0 };
    assert_eq!(shard.call(none).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(shard.call(ask()).await.unwrap().map, None);
}

#[tokio::test]
async fn updates_tell_which_keys_there_are_not() {
    let server = start(vec![table(prioritized("t"))]);
    let table = &server.tables()[0];
    for shard in both(&server) {
        let items: Vec<_> = (1..=100).map(|key| some(key, 1.0)).collect();
        add(table, items);
        let updates: Vec<_> = (0..=100).chain([500]).map(|key| (key, 2.0)).collect();
        let answer = shard.update_priorities("t", &updates, &[7, 600]).await.unwrap();
        // Deletes come first.
        assert_eq!((answer.missing_keys, answer.epoch), (vec![600, 0, 7, 500], 0));
        assert_eq!(table.watched().mass, 99.0 * 4.0);
        let error = shard.update_priorities("t", &[(1, f64::NAN)], &[1]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        refused(shard.update_priorities("u", &[], &[]).await, ErrorKind::TableNotFound, "");
        assert_eq!(table.watched().mass, 99.0 * 4.0);
        table.reset();
    }
}

#[tokio::test]
async fn a_watch_begins_with_all_tables_and_goes_on_with_those_that_change() {
    let server = start(vec![table(prioritized("t")), table(config("u"))]);
    for shard in both(&server) {
        server.tables().iter().for_each(|table| table.reset());
        let mut watch = shard.watch(&[]).await.unwrap();
        let first = next(&mut watch).await;
        let names: Vec<_> = first.tables.iter().map(|table| &table.name[..]).collect();
        assert_eq!((names, first.epoch), (vec!["t", "u"], 0));
        assert_eq!((first.tables[0].size, first.tables[0].mass), (0, 0.0));
        // An empty table has items: at once, and it alone.
        let began = Instant::now();
        add(&server.tables()[0], vec![some(1, 3.0), some(2, 1.0)]);
        let second = next(&mut watch).await;
        assert!(began.elapsed() < Duration::from_millis(90), "{:?}", began.elapsed());
        assert_eq!(second.tables.len(), 1);
        let told = &second.tables[0];
        assert_eq!((told.size, told.mass, told.cursor), (2, 10.0, 2.0));
        assert_eq!((told.num_inserts, told.num_samples, told.num_deletes), (2, 0, 0));
        assert_eq!((told.min_diff, told.max_diff), (f64::MIN, f64::MAX));
        assert_eq!(told.min_size_to_sample, 1);
        // Other changes come after 100 ms, all in one.
        let began = Instant::now();
        server.tables()[0].sample(1, None).await.unwrap();
        server.tables()[0].mutate(&[(1, 4.0)], &[]).unwrap();
        let third = next(&mut watch).await;
        assert!(began.elapsed() > Duration::from_millis(50), "{:?}", began.elapsed());
        let told = &third.tables[0];
        assert_eq!((told.size, told.mass, told.cursor), (2, 17.0, 1.0));
        // A change of the mass below 1 % is not reported.
        server.tables()[0].mutate(&[(1, 4.01)], &[]).unwrap();
        let quiet = tokio::time::timeout(Duration::from_millis(250), watch.receive()).await;
        assert!(quiet.is_err(), "{quiet:?}");
    }
}

#[tokio::test]
async fn a_watch_tells_at_once_who_waits() {
    let server = start(vec![table(queue("q", 1))]);
    let table = &server.tables()[0];
    for shard in both(&server) {
        let mut watch = shard.watch(&["q".to_owned()]).await.unwrap();
        next(&mut watch).await;
        let sampling = {
            let table = Arc::clone(table);
            tokio::spawn(async move { table.sample(1, None).await })
        };
        let began = Instant::now();
        let told = until(&mut watch, |told| told.sample_waits).await;
        assert!(!told.insert_waits);
        add(table, vec![item(1, "q", 1.0, &[chunk(1, &[1])])]);
        soon(sampling).await.unwrap().unwrap();
        let full = [2, 3].map(|key| item(key, "q", 1.0, &[chunk(key, &[1])]));
        add(table, full.to_vec());
        let told = until(&mut watch, |told| told.insert_waits).await;
        assert!(!told.sample_waits && told.cursor == 1.0);
        assert!(began.elapsed() < Duration::from_millis(90), "{:?}", began.elapsed());
        table.sample(1, None).await.unwrap();
        until(&mut watch, |told| !told.insert_waits).await;
        table.sample(1, None).await.unwrap();
        // A request that is given up does not wait any more.
        let table = Arc::clone(table);
        let sampling = tokio::spawn(async move { table.sample(1, None).await });
        until(&mut watch, |told| told.sample_waits).await;
        sampling.abort();
        until(&mut watch, |told| !told.sample_waits).await;
    }
}

#[tokio::test]
async fn a_watch_tells_of_a_new_map() {
    let server = start(vec![table(config("t"))]);
    let [remote, local] = both(&server);
    let mut watches =
        [remote.watch(&[]).await.unwrap(), local.watch(&["t".to_owned()]).await.unwrap()];
    for watch in &mut watches {
        next(watch).await;
    }
    let request = own::SetDirectoryRequest { map: Some(two_shards(5)), index: 0 };
    remote.call(request).await.unwrap();
    for watch in &mut watches {
        while next(watch).await.epoch != 5 {}
    }
    assert_eq!(remote.update_priorities("t", &[], &[]).await.unwrap().epoch, 5);
}

#[tokio::test]
async fn a_watch_of_an_unknown_table_lists_the_tables() {
    let server = start(vec![table(config("t"))]);
    let [remote, local] = both(&server);
    let names = ["t".to_owned(), "gone".to_owned()];
    let error = local.watch(&names).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::TableNotFound);
    let mut watch = remote.watch(&names).await.unwrap();
    assert_eq!(soon(watch.receive()).await.unwrap_err().message(), error.message());
}

#[tokio::test]
async fn a_watch_ends_with_a_drain_and_with_the_server() {
    for drains in [false, true] {
        let server = start(vec![table(config("t"))]);
        let mut watches = Vec::new();
        for shard in both(&server) {
            let mut watch = shard.watch(&[]).await.unwrap();
            next(&mut watch).await;
            watches.push((watch, shard));
        }
        if drains {
            server.drain(Duration::ZERO, false).await;
        } else {
            server.stop();
        }
        for (mut watch, shard) in watches {
            let error = soon(watch.receive()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            if drains {
                let again = shard.watch(&[]).await;
                let error = match again {
                    Ok(mut watch) => soon(watch.receive()).await.unwrap_err(),
                    Err(error) => error,
                };
                assert!(error.message().contains("draining"), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn keys_of_slots_that_were_never_owned_are_told_of() {
    let server = start(vec![table(config("t"))]);
    let shard = client(&server);
    let table = &server.tables()[0];
    let set = |map| shard.call(own::SetDirectoryRequest { map: Some(map), index: 0 });
    add(table, vec![some(key(4000, 1), 1.0)]);
    assert!(!table.watched().has_foreign_keys, "there is no map");
    set(two_shards(1)).await.unwrap();
    assert!(table.watched().has_foreign_keys, "it is there already");
    table.reset();
    assert!(!table.watched().has_foreign_keys);
    let items: Vec<_> = (0..3000).map(|at| some(key(at % 2048, at), 1.0)).collect();
    add(table, items);
    assert!(!table.watched().has_foreign_keys);
    let mut watch = shard.watch(&[]).await.unwrap();
    assert!(!next(&mut watch).await.tables[0].has_foreign_keys);
    add(table, vec![some(key(2048, 1), 1.0)]);
    until(&mut watch, |told| told.has_foreign_keys).await;
    // The flag stays, although the item has left.
    table.mutate(&[], &[key(2048, 1)]).unwrap();
    assert!(table.watched().has_foreign_keys);
    // Another map looks again. Former slots are its own.
    let mut map = two_shards(2);
    map.slots = vec![range(0, 1000, 0, &[]), range(1000, 3096, 1, &[0])];
    set(map).await.unwrap();
    assert!(!table.watched().has_foreign_keys);
    let mut map = two_shards(3);
    map.slots = vec![range(0, 1000, 0, &[]), range(1000, 3096, 1, &[])];
    set(map).await.unwrap();
    assert!(table.watched().has_foreign_keys);
}

#[tokio::test]
async fn a_map_names_its_tables() {
    let server = start(vec![table(config("t"))]);
    let shard = client(&server);
    let info = TableInfo { name: "t".to_owned(), max_size: 7, ..TableInfo::default() };
    let map = own::ShardMap { tables: vec![info.clone()], ..two_shards(1) };
    let request = own::SetDirectoryRequest { map: Some(map), index: 0 };
    shard.call(request).await.unwrap();
    assert_eq!(shard.call(ask()).await.unwrap().map.unwrap().tables, [info]);
}

#[tokio::test]
async fn bounds_of_a_limiter_move_and_are_restored() {
    let server = start(vec![table(queue("q", 10))]);
    for shard in both(&server) {
        let set = |min_diff, max_diff, restore| {
            shard.call(own::SetRateLimiterRequest {
                table: "q".to_owned(),
                min_diff,
                max_diff,
                min_size_to_sample: 2,
                restore,
                term: 7,
            })
        };
        let answer = set(1.0, 3.0, false).await.unwrap();
        assert_eq!((answer.previous_min_diff, answer.previous_max_diff), (0.0, 10.0));
        let told = answer.table.unwrap();
        assert_eq!((told.min_diff, told.max_diff, told.min_size_to_sample), (0.0, 3.0, 2));
        let info = &shard.server_info().await.unwrap().tables[0];
        let limiter = info.rate_limiter_info.unwrap();
        assert_eq!((limiter.min_diff, limiter.max_diff), (0.0, 10.0), "those of the user");
        let mut watch = shard.watch(&[]).await.unwrap();
        next(&mut watch).await;
        add(
            &server.tables()[0],
            (0..5).map(|key| item(key, "q", 1.0, &[chunk(9, &[1])])).collect(),
        );
        let told = until(&mut watch, |told| told.insert_waits).await;
        assert_eq!((told.size, told.max_diff), (3, 3.0));
        let earlier = own::SetRateLimiterRequest {
            table: "q".to_owned(),
            min_size_to_sample: 1,
            term: 6,
            ..Default::default()
        };
        let error = shard.call(earlier).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
        let told = set(f64::NAN, f64::NAN, true).await.unwrap().table.unwrap();
        assert_eq!((told.size, told.max_diff, told.min_size_to_sample), (5, 10.0, 1));
        until(&mut watch, |told| told.max_diff == 10.0 && !told.insert_waits).await;
        refused(set(f64::NAN, 0.0, false).await, ErrorKind::InvalidArgument, "");
        server.tables()[0].reset();
    }
    let gone = own::SetRateLimiterRequest { table: "gone".to_owned(), ..Default::default() };
    refused(client(&server).call(gone).await, ErrorKind::TableNotFound, "");
}

/// Items whose neighbours share a chunk, as windows of an episode do.
fn windows(keys: std::ops::Range<u64>, bytes: usize) -> Vec<StoredItem> {
    let chunks: Vec<_> = (keys.start..=keys.end).map(|key| large_chunk(1 + key, bytes)).collect();
    let items = chunks.windows(2).zip(keys).map(|(pair, key)| StoredItem {
        removal_priority: None,
        key,
        priority: key as f64,
        times_sampled: (key % 3) as i32,
        inserted_at_ns: 1000 + key as i64,
        trajectory: item(key, "t", 1.0, pair).trajectory,
    });
    items.collect()
}

#[tokio::test]
async fn a_transfer_moves_items_as_they_are() {
    // Many items in a message, some, and several messages for an item.
    for (bytes, count) in [(10, 300), (5000, 300), (300_000, 20)] {
        let server = start(vec![table(prioritized("t")), table(config("u"))]);
        let t: Arc<str> = "t".into();
        for shard in both(&server) {
            let items = windows(0..count, bytes);
            let mut transfer = shard.open_transfer().await.unwrap();
            for some in items.chunks(70) {
                soon(transfer.send(&t, some.to_vec())).await.unwrap();
            }
            soon(transfer.send(&"u".into(), windows(0..3, bytes))).await.unwrap();
            // The same once more.
            soon(transfer.send(&t, items[..10].to_vec())).await.unwrap();
            let done = soon(transfer.finish()).await.unwrap();
            assert_eq!((done.num_added, done.num_present), (count as i64 + 3, 10));
            let mut scan = shard.open_scan("t", ScanOptions::default()).await.unwrap();
            let mut found = Vec::new();
            loop {
                let some = soon(scan.receive()).await.unwrap();
                if some.is_empty() {
                    break;
                }
                found.extend(some);
            }
            assert_eq!(found.len(), count as usize);
            for (found, item) in found.iter().zip(&items) {
                assert_eq!(
                    (found.key, found.priority, found.times_sampled, found.inserted_at_ns),
                    (item.key, item.priority, item.times_sampled, item.inserted_at_ns)
                );
                let pairs = found.trajectory.chunks().iter().zip(item.trajectory.chunks());
                assert!(
                    pairs.clone().count() == 2
                        && pairs
                            .clone()
                            .all(|(a, b)| { a.has_payload_of(b) && a.key() == b.key() })
                );
            }
            let status = server.tables()[0].status();
            // Neighbours share their chunks here too.
            assert_eq!((status.info.num_chunks, status.statistics.inserts), (count + 1, 0));
            assert_eq!(status.cursor, 0.0);
            server.tables().iter().for_each(|table| table.reset());
        }
    }
}

#[tokio::test]
async fn another_chunk_with_the_key_of_an_earlier_one_is_not_mixed_up_with_it() {
    let server = start(vec![table(config("t"))]);
    let [remote, _] = both(&server);
    let stored = |key, value: i32| StoredItem {
        removal_priority: None,
        key,
        priority: 1.0,
        times_sampled: 0,
        inserted_at_ns: 1 + key as i64,
        trajectory: item(key, "t", 1.0, &[chunk(7, &[value])]).trajectory,
    };
    let mut transfer = remote.open_transfer().await.unwrap();
    let t = "t".into();
    soon(transfer.send(&t, vec![stored(1, 10), stored(2, 20)])).await.unwrap();
    soon(transfer.send(&t, vec![stored(3, 30)])).await.unwrap();
    soon(transfer.finish()).await.unwrap();
    let mut scan = server.tables()[0].begin_scan().unwrap();
    let found = server.tables()[0].scan(&mut scan).unwrap();
    let payloads: Vec<_> = found.iter().map(|it| it.trajectory.chunks()[0].clone()).collect();
    for (payload, value) in payloads.iter().zip([10, 20, 30]) {
        assert!(payload.has_payload_of(&chunk(7, &[value])));
    }
}

#[tokio::test]
async fn a_transfer_that_fails_says_why() {
    let server = start(vec![table(prioritized("t"))]);
    for shard in both(&server) {
        let mut transfer = shard.open_transfer().await.unwrap();
        let error = async {
            soon(transfer.send(&"gone".into(), windows(0..3, 10))).await?;
            soon(transfer.finish()).await
        };
        assert_eq!(error.await.unwrap_err().kind(), ErrorKind::TableNotFound);
        let mut transfer = shard.open_transfer().await.unwrap();
        let bad = StoredItem { priority: f64::NAN, ..windows(0..1, 10).remove(0) };
        let error = async {
            soon(transfer.send(&"t".into(), vec![bad])).await?;
            soon(transfer.finish()).await
        };
        refused(error.await, ErrorKind::InvalidArgument, "Priority must not be NaN");
    }
    assert_eq!(server.tables()[0].watched().size, 0);
}

#[tokio::test]
async fn servers_of_dm_reverb_are_told_from_shards() {
    // A server that knows none of the calls.
    #[derive(Debug)]
    struct Old;
    impl reverb_rpc::server::Handler for Old {
        type Caller = ();
        type Admission = ();

        fn identify(
            &self,
            _: &str,
            _: &reverb_rpc::server::Peer,
            _: Option<&str>,
        ) -> ((), Option<()>) {
            ((), Some(()))
        }

        fn still_admits(&self, (): &()) -> bool {
            true
        }

        async fn answer(
            self: &Arc<Self>,
            _: &str,
            (): (),
            _: reverb_rpc::framing::MessageReader,
            _: &mut reverb_rpc::server::Responder,
        ) -> reverb_base::Result<reverb_rpc::status::Status> {
            Err(reverb_base::Error::unimplemented(""))
        }
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_stop, signal) = reverb_rpc::server::stop_signal();
    let options = reverb_rpc::server::PortOptions {
        keepalive: reverb_rpc::Keepalive::default(),
        limits: reverb_rpc::server::ConnectionLimits {
            connections: 10,
            streams: 100,
            streams_per_connection: 100,
            stream_window_bytes: 1 << 20,
            unread_timeout: PATIENCE,
        },
        traffic: Arc::new(reverb_rpc::server::Traffic::new(
            reverb_wire::calls::all().map(|row| row.path).collect(),
        )),
        outgoing: reverb_rpc::server::Outgoing::new(1 << 20),
        hint: String::new(),
        tls: None,
        wants_tokens: false,
    };
    let listeners = reverb_rpc::server::Listeners::new(listener);
    tokio::spawn(reverb_rpc::server::serve(listeners, Arc::new(Old), signal, options));
    let old = reverb_wire::GrpcTransport::new(&address.to_string()).unwrap();
    let told = |error: reverb_base::Error, what: &str| {
        assert_eq!(error.kind(), ErrorKind::Unimplemented);
        let text = format!("The server at {address} does not {what}: it is a server of dm-reverb,");
        assert!(error.message().starts_with(&text), "{error}");
    };
    told(soon(old.call(ask())).await.unwrap_err(), "return the map of a group of shards");
    let request = own::SetDirectoryRequest::default();
    told(soon(old.call(request)).await.unwrap_err(), "accept the map of a group of shards");
    let mut watch = soon(old.watch(&[])).await.unwrap();
    told(soon(watch.receive()).await.unwrap_err(), "watch tables");
    told(soon(old.update_priorities("", &[], &[])).await.unwrap_err(), "report missing keys");
    let request = own::SetRateLimiterRequest::default();
    told(soon(old.call(request)).await.unwrap_err(), "move the bounds of rate limiters");
    let mut transfer = soon(old.open_transfer()).await.unwrap();
    told(soon(transfer.finish()).await.unwrap_err(), "accept items of other shards");
}
