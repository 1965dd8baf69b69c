// SPDX-License-Identifier: Apache-2.0
//! Discovery of the shards of a group, starting at its seeds.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use reverb_base::{Error, ErrorKind, Result};
use reverb_wire::Calls as _;
use reverb_wire::generated::reverb::{DirectoryRequest, DirectoryResponse, ShardMap};
use reverb_wire::transport::ServerInfo;
use tokio::sync::watch;

use super::{Group, PATIENCE, View};
use crate::member::{Member, MemberConfig, ShardConnection, State};
use crate::slot_map::SlotMap;
use crate::tables::{check_alike, other_limit, samplings};

/// Time that a silent shard gets after another shard has answered.
const AFTER_OTHERS: Duration = Duration::from_millis(700);

/// A seed and its answer.
struct Seed {
    host_port: String,
    connection: Box<dyn ShardConnection>,
    /// `None` if the server has no directory call: it runs dm-reverb or an older release.
    answer: Result<Option<DirectoryResponse>>,
}

impl Group {
    /// Asks all seeds, and makes a view of their answers.
    pub(super) async fn find(self: &Arc<Self>) -> Result<View> {
        let mut seeds = Vec::new();
        for host_port in self.seed_addresses().await {
            let connection = self.connect.connect(&self.address.shard(&host_port), None)?;
            seeds.push((host_port, connection));
        }
        let others = Others::default();
        let asked = seeds.into_iter().map(|(host_port, connection)| async {
            let answer = others.or_without_it(ask(&*connection)).await;
            Seed { host_port, connection, answer }
        });
        let seeds = join_all(asked).await;
        if let Some(error) = seeds.iter().find_map(|seed| match &seed.answer {
            // A wrong certificate or a missing right is reported: going on would hide the shard.
            Err(error) if !error.is_gone() && error.kind() != ErrorKind::DeadlineExceeded => {
                Some(error.clone().context(&format!("Shard {}", seed.host_port)))
            }
            _ => None,
        }) {
            return Err(error);
        }
        if seeds.iter().all(|seed| seed.answer.is_err()) {
            let first = seeds.into_iter().find_map(|seed| seed.answer.err());
            let first = first.unwrap_or_else(|| Error::unavailable("no seed"));
            return Err(first.context(&format!("No shard of {} can be reached", self.text())));
        }
        let maps =
            seeds.iter().filter_map(|seed| seed.answer.as_ref().ok()?.as_ref()?.map.as_ref());
        let newest = maps.max_by_key(|map| map.epoch).cloned();
        let (map, members) = match newest {
            Some(mut map) => {
                check_one_group(&seeds, &map)?;
                take_own_addresses(&mut map, &seeds);
                let members = self.members_of(&map, seeds, &[])?;
                (Some(map), members)
            }
            None => (None, members_in_order(seeds)?),
        };
        let slots = match &map {
            Some(map) => SlotMap::of(map)?,
            None => SlotMap::by_position(members.len()),
        };
        let mut view = View { map, slots, members, samplings: HashMap::new(), tables: Vec::new() };
        self.check_tables(&mut view).await?;
        Ok(view)
    }

    /// Addresses of the seeds. A single name that has several addresses gives one seed each.
    async fn seed_addresses(&self) -> Vec<String> {
        let seeds = &self.address.seeds;
        let [only] = &seeds[..] else { return seeds.clone() };
        let is_name = |host: &str| {
            let host = host.trim_matches(['[', ']']);
            host != "localhost" && host.parse::<std::net::IpAddr>().is_err()
        };
        // TLS certificates hold names, so names are kept with TLS.
        match only.rsplit_once(':') {
            Some((host, port)) if is_name(host) && !only.starts_with("unix:") => {
                let found = tokio::time::timeout(PATIENCE, tokio::net::lookup_host(only)).await;
                let Ok(Ok(found)) = found else { return seeds.clone() };
                let mut addresses: Vec<String> = found
                    .map(|address| match address.ip() {
                        std::net::IpAddr::V4(ip) => format!("{ip}:{port}"),
                        std::net::IpAddr::V6(ip) => format!("[{ip}]:{port}"),
                    })
                    .collect();
                addresses.dedup();
                if addresses.len() < 2 || self.address.scheme == "grpcs://" {
                    return seeds.clone();
                }
                addresses
            }
            _ => seeds.clone(),
        }
    }

    /// Makes the members of a map. Missing addresses come from the seeds or the previous members.
    fn members_of(
        self: &Arc<Self>,
        map: &ShardMap,
        seeds: Vec<Seed>,
        before: &[Arc<Member>],
    ) -> Result<Vec<Arc<Member>>> {
        let slots = SlotMap::of(map)?;
        let mut by_index: HashMap<i32, Seed> = HashMap::new();
        let mut silent = Vec::new();
        let num_seeds = seeds.len();
        for (position, seed) in seeds.into_iter().enumerate() {
            let Ok(Some(answer)) = &seed.answer else {
                silent.push((position, seed));
                continue;
            };
            let Some(index) = answer.index else { continue };
            if let Some(other) = by_index.get(&index) {
                let id_of = |seed: &Seed| Some(seed.answer.as_ref().ok()?.as_ref()?.server_id);
                if id_of(other) != id_of(&seed) {
                    return Err(Error::failed_precondition(format!(
                        "{} and {} are different servers, and both say that they are shard {index} \
                         of group {:?}. Give each shard an index of its own.",
                        other.host_port, seed.host_port, map.group
                    )));
                }
                continue;
            }
            by_index.insert(index, seed);
        }
        // If there is a seed for each shard, a silent seed is the shard of its position.
        if num_seeds == map.shards.len() {
            for (position, seed) in silent {
                by_index.entry(position as i32).or_insert(seed);
            }
        }
        let mut members = Vec::new();
        for shard in &map.shards {
            let known = by_index.remove(&shard.index);
            let silence = known.as_ref().and_then(|seed| seed.answer.as_ref().err().cloned());
            let answered = known.as_ref().and_then(|seed| seed.answer.as_ref().ok()?.as_ref());
            let named_id = Some(shard.server_id).filter(|&id| id != 0);
            let server_id = answered.map(|answer| answer.server_id).or(named_id);
            let previous = before.iter().find(|member| member.index == shard.index);
            let (address, connection) = match known {
                Some(seed) if shard.address.is_empty() => {
                    (self.address.shard(&seed.host_port), seed.connection)
                }
                None if shard.address.is_empty() => {
                    if let Some(known) = previous {
                        (known.address.clone(), self.connect.connect(&known.address, None)?)
                    } else {
                        return Err(Error::failed_precondition(format!(
                            "Group {:?} has {} shards, and no address of shard {} is known: write \
                             all of them into the address, in their order.",
                            map.group,
                            map.shards.len(),
                            shard.index
                        )));
                    }
                }
                _ => {
                    if shard.address.contains("://") {
                        return Err(Error::failed_precondition(format!(
                            "The map of group {:?} has {:?} as the address of shard {}, with a \
                             scheme. The client alone decides about TLS.",
                            map.group, shard.address, shard.index
                        )));
                    }
                    let address = self.address.shard(&shard.address);
                    let connection = self.connect.connect(&address, named_id)?;
                    (address, connection)
                }
            };
            let config = MemberConfig {
                index: shard.index,
                address,
                weight: shard.weight,
                is_draining: shard.is_draining,
                is_coordinator: shard.is_coordinator,
                server_id,
            };
            let is_near = !shard.unix_path.is_empty() && named_id.is_some();
            let socket = if is_near { self.connect.connect_socket(&shard.unix_path) } else { None };
            let member =
                Member::new(config, connection, slots.slots_of(shard.index)).with_socket(socket);
            if let Some(error) = silence {
                member.went_down(&error);
            }
            members.push(Arc::new(member));
        }
        members.sort_by_key(|member| member.index);
        Ok(members)
    }

    /// Asks all members for their tables, and checks that the tables are equal.
    async fn check_tables(&self, view: &mut View) -> Result<()> {
        let others = Others::default();
        let asked = view.members.iter().map(|member| async {
            // The task of this member retries; it was asked a moment ago.
            if let State::Down(error) = member.state() {
                return (member.name(), Err(error));
            }
            if let Some(id) = member.server_id() {
                member.prove_socket(id).await;
            }
            let info = match member.shard() {
                Ok(shard) => others.or_without_it(within(shard.server_info())).await,
                Err(error) => Err(error),
            };
            match &info {
                Ok(_) => member.came_up(None),
                Err(error) => member.went_down(error),
            }
            (member.name(), info)
        });
        let answers = join_all(asked).await;
        let mut first: Option<(String, ServerInfo)> = None;
        let mut failure = None;
        let mut difference = None;
        // While a shard leaves, the parts of the others grow one after another.
        let is_settled = view.members.iter().all(|member| !member.is_draining);
        for (at, (name, info)) in answers.into_iter().enumerate() {
            if let Ok(info) = &info
                && is_settled
            {
                let (given, num_shards) = (view.given(), view.members.len());
                let limit = || other_limit(&name, &info.tables, given, at, num_shards);
                difference = difference.or_else(limit);
            }
            match (&first, info) {
                (None, Ok(info)) => first = Some((name, info)),
                (Some((first, tables)), Ok(info)) => {
                    let found = check_alike(first, &tables.tables, &name, &info.tables)?;
                    difference = found.or(difference);
                }
                (_, Err(error)) => {
                    failure.get_or_insert(error);
                }
            }
        }
        if let Some(difference) = difference {
            tracing::warn!(
                peer = self.text(),
                "the shards of the group have different settings: {difference}. Set it again for \
                 the group: reverb configure, or Client.configure_table"
            );
        }
        match (first, failure) {
            (Some((_, info)), _) => {
                view.samplings = samplings(&info.tables)?;
                view.tables = info.tables;
                Ok(())
            }
            (None, Some(error)) => Err(error),
            (None, None) => Err(Error::failed_precondition(format!(
                "The group at {} has no shards.",
                self.text()
            ))),
        }
    }

    /// Installs the map if it is newer. Members that did not change are kept.
    pub(crate) fn adopt(self: &Arc<Self>, map: &ShardMap) -> Result<()> {
        let Some(old) = self.found() else { return Ok(()) };
        if map.epoch <= old.epoch()
            || old.map.as_ref().is_some_and(|known| known.group != map.group)
        {
            return Ok(());
        }
        let slots = SlotMap::of(map)?;
        let mut members = Vec::new();
        for member in self.members_of(map, Vec::new(), &old.members)? {
            let same = old.member(member.index).filter(|known| {
                known.address == member.address
                    && known.is_draining == member.is_draining
                    && (member.server_id().is_none() || known.server_id() == member.server_id())
                    && old.slots.slots_of(member.index) == slots.slots_of(member.index)
            });
            members.push(same.map_or(member, Arc::clone));
        }
        let samplings = old.samplings.clone();
        let tables = old.tables.clone();
        tracing::info!(
            peer = self.text(),
            epoch = map.epoch,
            shards = members.len(),
            "the group has a new map"
        );
        self.install(&Arc::new(View { map: Some(map.clone()), slots, members, samplings, tables }));
        Ok(())
    }
}

/// Limits the wait for silent shards once another shard has answered.
#[derive(Default)]
struct Others(watch::Sender<bool>);

impl Others {
    async fn or_without_it<T>(&self, asked: impl Future<Output = Result<T>>) -> Result<T> {
        let mut has_answered = self.0.subscribe();
        let patience = async {
            // Fails only if the sender is gone, and the sender is `self`.
            let _ = has_answered.wait_for(|answered| *answered).await;
            tokio::time::sleep(AFTER_OTHERS).await;
        };
        let answer = tokio::select! {
            answer = asked => answer,
            () = patience => Err(Error::unavailable(format!(
                "no answer, {} s after another shard has answered",
                AFTER_OTHERS.as_secs_f64()
            ))),
        };
        if answer.is_ok() {
            self.0.send_replace(true);
        }
        answer
    }
}

/// Waits for an answer that needs no work at the server, for at most [`PATIENCE`].
pub(crate) async fn within<T>(answer: impl Future<Output = Result<T>>) -> Result<T> {
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(Error::unavailable(format!("no answer within {} s", PATIENCE.as_secs()))),
    }
}

/// Asks a server for the directory of its group.
pub(super) async fn ask(connection: &dyn ShardConnection) -> Result<Option<DirectoryResponse>> {
    let shard = connection.shard()?;
    match within(shard.call(DirectoryRequest::default())).await {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.kind() == ErrorKind::Unimplemented => Ok(None),
        Err(error) => Err(error),
    }
}

/// A shard knows its own address best: it may have come back at another port.
fn take_own_addresses(map: &mut ShardMap, seeds: &[Seed]) {
    for seed in seeds {
        let Ok(Some(DirectoryResponse { map: Some(own), index: Some(index), .. })) = &seed.answer
        else {
            continue;
        };
        let known = own.shards.iter().find(|shard| shard.index == *index);
        let shard = map.shards.iter_mut().find(|shard| shard.index == *index);
        if let (Some(shard), Some(known)) = (shard, known)
            && own.epoch == map.epoch
        {
            shard.address.clone_from(&known.address);
        }
    }
}

fn check_one_group(seeds: &[Seed], map: &ShardMap) -> Result<()> {
    for seed in seeds {
        let Ok(answer) = &seed.answer else { continue };
        let theirs = answer.as_ref().and_then(|answer| answer.map.as_ref());
        match theirs {
            Some(theirs) if theirs.group != map.group => {
                return Err(Error::failed_precondition(format!(
                    "The server at {} is a shard of group {:?}, and another of the address is of \
                     group {:?}.",
                    seed.host_port, theirs.group, map.group
                )));
            }
            None => {
                return Err(Error::failed_precondition(format!(
                    "The server at {} is no shard of a group, and another of the address is one of \
                     group {:?}.",
                    seed.host_port, map.group
                )));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Makes the members of a list without a map: the position in the list is the index.
fn members_in_order(seeds: Vec<Seed>) -> Result<Vec<Arc<Member>>> {
    let slots = SlotMap::by_position(seeds.len());
    let mut ids: HashMap<u64, String> = HashMap::new();
    let mut members = Vec::new();
    for (position, seed) in seeds.into_iter().enumerate() {
        let Seed { host_port, connection, answer } = seed;
        let is_ours = !matches!(answer, Ok(None));
        let silence = answer.as_ref().err().cloned();
        let server_id = answer.ok().flatten().map(|answer| answer.server_id);
        if let Some(other) = server_id.and_then(|id| ids.insert(id, host_port.clone())) {
            return Err(Error::failed_precondition(format!(
                "{other} and {host_port} are the same server. List each server of a group once."
            )));
        }
        let index = position as i32;
        let config = MemberConfig {
            index,
            address: host_port,
            weight: 1.0,
            is_draining: false,
            is_coordinator: false,
            server_id,
        };
        let member = Member::new(config, connection, slots.slots_of(index));
        member.set_ours(is_ours);
        if let Some(error) = silence {
            member.went_down(&error);
        }
        members.push(Arc::new(member));
    }
    Ok(members)
}
