// SPDX-License-Identifier: Apache-2.0
//! A server in the same process, reached by function calls: no socket, no messages, no copies.

mod scan;
mod shard;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use reverb_base::{Error, PerProcess, Result};
use reverb_data::rollouts::Refusal;
use reverb_data::{ColumnSpan, NewItem, SampleOptions, Sampled};
use reverb_engine::{ChangedBy, Confirm, Table};
use reverb_rpc::client::own_name;
use reverb_rpc::socket_path::SocketPath;
use reverb_rpc::target::Loopback;
use reverb_wire::calls::SmallCall;
use reverb_wire::shard::Shard;
use reverb_wire::transport::{
    BoxFuture, Hold, HoldRequest, InsertBatch, InsertSink, InsertStream, Refusals, SampleRequest,
    SampleStream, ScanOptions, ScanStream, Transport, WaitHere,
};
use tokio::sync::mpsc;

use crate::observe::streams::{OpenStream, Stream, StreamKind, THIS_PROCESS, WaitsFor};
use crate::service::Service;
use crate::service::calls::answer_here;
use crate::service::insert_stream::{grow, is_growth, opens_items};
use crate::service::leases::LeaseHold;
use crate::service::limiter_hold::LoggedHold;
use crate::service::selection::Selection;
use crate::service::status::explain_timeout;
use crate::service::store::{LocalAdopter, MAX_LOST_BATCHES, may_leave_out};
use reverb_rpc::server::Stop;

/// Largest number of samples taken under one lock of a table.
const MAX_BATCH: usize = 4096;

/// Largest number of bytes of payloads that are loaded at once, unless one item has more.
const MAX_LOADED_BYTES: usize = 64 << 20;

/// Servers of this process. A forked child has their memory, but none of their threads.
static SERVERS: PerProcess<Mutex<Servers>> = PerProcess::new();

#[derive(Default)]
struct Servers {
    running: BTreeMap<Address, Registered>,
    /// Addresses at which a server has stopped for good, and none has started since.
    ended: BTreeSet<Address>,
}

/// A place at which a server listens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Address {
    Port(u16, IpAddr),
    /// The absolute path of a Unix socket.
    Socket(PathBuf),
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Port(address.port(), address.ip().to_canonical())
    }
}

struct Registered {
    service: Weak<Service>,
    /// Id of the server.
    id: u64,
}

/// Registers a server.
pub(crate) fn register(address: Address, service: &Arc<Service>) {
    let registered = Registered { service: Arc::downgrade(service), id: service.server_id() };
    SERVERS.with(|servers| {
        servers.ended.remove(&address);
        servers.running.insert(address, registered);
    });
}

/// Removes a server, unless another one now has its address. With `is_final` clients of this
/// process do not wait for another one.
pub(crate) fn unregister(address: &Address, service: &Arc<Service>, is_final: bool) {
    SERVERS.with(|servers| {
        let registered = servers.running.get(address);
        if registered
            .is_some_and(|known| std::ptr::eq(known.service.as_ptr(), &raw const **service))
        {
            servers.running.remove(address);
            if is_final {
                servers.ended.insert(address.clone());
            }
        }
    });
}

/// True if a server of this process has stopped for good at this address, and none of this process
/// has started there since.
pub fn local_has_ended(address: Option<Loopback>, socket: Option<&SocketPath>) -> bool {
    SERVERS.with(|servers| {
        let leads_to = |ended: &Address| match ended {
            Address::Port(port, ip) => {
                address.is_some_and(|own| own.port == *port && own.leads_to(*ip))
            }
            Address::Socket(path) => socket.is_some_and(|own| *path == own.absolute()),
        };
        servers.ended.iter().any(leads_to)
    })
}

/// The servers of this process that have not stopped.
pub(crate) fn running_servers() -> Vec<Arc<Service>> {
    let services: Vec<_> = SERVERS.with(|servers| {
        let ports = servers.running.iter().filter(|(at, _)| matches!(at, Address::Port(..)));
        ports.filter_map(|(_, server)| server.service.upgrade()).collect()
    });
    services.into_iter().filter(|service| !service.stop.is_stopped()).collect()
}

/// The server of this process at an address, if there is one.
pub fn local_shard(address: Loopback) -> Option<Arc<dyn Shard>> {
    const LEAST: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let port = address.port;
    let service = SERVERS.with(|servers| {
        let mut from_port = servers.running.range(Address::Port(port, LEAST)..);
        from_port.find_map(|(known, server)| match known {
            Address::Port(of, ip) if *of == port && address.leads_to(*ip) => {
                server.service.upgrade()
            }
            _ => None,
        })
    })?;
    running(&service, || format!("localhost:{port}"))
}

/// The server of this process that listens on a Unix socket. A different path of the same socket,
/// such as a link, is not recognised and uses the socket.
pub fn local_shard_of_socket(path: &SocketPath) -> Option<Arc<dyn Shard>> {
    let service = SERVERS.with(|servers| {
        // Sockets come last. To ask for an absolute path takes a call of the system.
        matches!(servers.running.last_key_value(), Some((Address::Socket(_), _)))
            .then(|| servers.running.get(&Address::Socket(path.absolute())))
            .flatten()?
            .service
            .upgrade()
    })?;
    running(&service, || path.to_string())
}

/// The server of this process with this id, at any address of this machine.
pub fn local_shard_of_id(server_id: u64) -> Option<Arc<dyn Shard>> {
    let (port, service) = SERVERS.with(|servers| {
        servers.running.iter().find_map(|(address, server)| match address {
            Address::Port(port, ip)
                if server.id == server_id && (ip.is_loopback() || ip.is_unspecified()) =>
            {
                Some((*port, server.service.upgrade()?))
            }
            _ => None,
        })
    })?;
    running(&service, || format!("localhost:{port}"))
}

fn running(service: &Arc<Service>, address: impl FnOnce() -> String) -> Option<Arc<dyn Shard>> {
    let is_running = !service.stop.is_stopped();
    is_running.then(|| Arc::new(LocalTransport::new(service, &address())) as Arc<dyn Shard>)
}

/// Weak reference to a server: clients may outlive it, and its tables can be large.
#[derive(Clone)]
struct LocalService {
    service: Weak<Service>,
    stop: Stop,
}

impl LocalService {
    /// The service, if the server is still running.
    fn get(&self) -> Result<Arc<Service>> {
        let service = self.service.upgrade().filter(|service| !service.stop.is_stopped());
        service.ok_or_else(|| self.stop.error())
    }

    /// The service, if it accepts streams of items.
    fn get_for_stream(&self) -> Result<Arc<Service>> {
        let service = self.get()?;
        service.drain.check()?;
        Ok(service)
    }
}

struct LocalTransport {
    service: LocalService,
    address: String,
}

impl LocalTransport {
    fn new(service: &Arc<Service>, address: &str) -> Self {
        let stop = service.stop.clone();
        let service = LocalService { service: Arc::downgrade(service), stop };
        Self { service, address: format!("{address} (in this process)") }
    }
}

impl Service {
    /// Registers a stream of a client in this process.
    fn open_local(&self, kind: StreamKind) -> OpenStream {
        self.streams.open(kind, THIS_PROCESS, "", None)
    }
}

impl Transport for LocalTransport {
    fn open_insert(&self) -> BoxFuture<'_, Result<InsertStream>> {
        Box::pin(async {
            let running = self.service.get_for_stream()?;
            let open = running.open_local(StreamKind::Insert);
            let adopter = running.memory.adopter_of_writer();
            let (sender, confirmations) = mpsc::unbounded_channel();
            let refused = Refusals::default();
            let confirm: Arc<dyn Confirm> = Arc::new(Confirmer {
                sender,
                refused: Arc::clone(&refused),
                stop: self.service.stop.clone(),
            });
            let service = self.service.clone();
            let sink = LocalInsertSink {
                service,
                confirm,
                last_table: None,
                has_openings: false,
                max_wait: None,
                open,
                adopter,
            };
            let sink = Box::new(sink);
            Ok(InsertStream { sink, confirmations, refused, shard: None, server: None })
        })
    }

    fn open_sample(&self) -> BoxFuture<'_, Result<Box<dyn SampleStream>>> {
        Box::pin(async {
            let open = self.service.get_for_stream()?.open_local(StreamKind::Sample);
            let stream = LocalSampleStream {
                open,
                service: self.service.clone(),
                requests: VecDeque::new(),
                failure: None,
            };
            Ok(Box::new(stream) as Box<dyn SampleStream>)
        })
    }

    fn open_scan<'a>(
        &'a self,
        table: &'a str,
        options: ScanOptions<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn ScanStream>>> {
        Box::pin(async move {
            let stream = scan::LocalScanStream::begin(&self.service, table, &options)?;
            Ok(Box::new(stream) as Box<dyn ScanStream>)
        })
    }

    fn mutate_priorities<'a>(
        &'a self,
        table: &'a str,
        updates: &'a [(u64, f64)],
        deletes: &'a [u64],
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.service.get()?.mutate(table, updates, deletes).map(drop) })
    }

    fn small_call(&self, call: &'static SmallCall, request: Bytes) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(async move { answer_here(&self.service.get()?, call, request).await })
    }

    fn hold(&self, request: HoldRequest) -> BoxFuture<'_, Result<Box<dyn Hold>>> {
        Box::pin(async move {
            let by = ChangedBy::now(own_name());
            let service = self.service.get()?;
            let held = match request {
                HoldRequest::RateLimiter(request) => {
                    Held::RateLimiter(service.hold_limiter(&request, by)?)
                }
                HoldRequest::Leases(request) => {
                    Held::Leases(service.hold_leases(request, by.client)?)
                }
            };
            let service = self.service.clone();
            Ok(Box::new(LocalHold { held: Some(held), service }) as Box<dyn Hold>)
        })
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn is_local(&self) -> bool {
        true
    }

    fn may_withdraw(&self) -> bool {
        // With a store they may be on their way from the disk.
        self.service.get().is_ok_and(|service| service.memory.tier.is_none())
    }

    fn tables_state_id(&self) -> Option<(u64, u64)> {
        self.service.get().ok().map(|service| service.tables.state_id())
    }
}

/// What a client in this process holds.
enum Held {
    RateLimiter(LoggedHold),
    Leases(LeaseHold),
}

struct LocalHold {
    held: Option<Held>,
    service: LocalService,
}

impl LocalHold {
    fn end(&mut self) {
        match self.held.take() {
            Some(Held::RateLimiter(hold)) => drop(hold),
            // A client in the process of its server is never lost.
            Some(Held::Leases(hold)) => hold.release(),
            None => {}
        }
    }
}

impl Hold for LocalHold {
    fn release(&mut self) -> BoxFuture<'_, Result<()>> {
        self.end();
        Box::pin(async { self.service.get().map(drop) })
    }

    fn lost(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async { self.service.stop.stopped().await })
    }
}

impl Drop for LocalHold {
    fn drop(&mut self) {
        self.end();
    }
}

/// Forwards confirmations of tables. The channel closes with the sink and all queued items.
struct Confirmer {
    sender: mpsc::UnboundedSender<Result<Vec<u64>>>,
    refused: Refusals,
    stop: Stop,
}

impl Confirm for Confirmer {
    fn confirmed(&self, keys: &[u64]) {
        // The receiver may be gone; the items stay inserted.
        let _ = self.sender.send(Ok(keys.to_vec()));
    }

    fn refused(&self, refused: Vec<(u64, Refusal)>) {
        self.refused.lock().extend(refused);
    }

    fn failed(&self, error: Error) {
        let _ = self.sender.send(Err(self.stop.explain(error)));
    }
}

struct LocalInsertSink {
    service: LocalService,
    confirm: Arc<dyn Confirm>,
    /// Table of the last item, which signals when it has room.
    last_table: Option<Weak<Table>>,
    /// True if it has carried items with rollouts.
    has_openings: bool,
    max_wait: Option<Duration>,
    open: OpenStream,
    adopter: LocalAdopter,
}

impl LocalInsertSink {
    /// Waits until the server has room for the items.
    async fn wait_for_room(&mut self, service: &Service, items: &[NewItem]) -> Result<()> {
        // Without more for the items that are there, a full table would stay full.
        if items.iter().all(is_growth) {
            let room = service.stop.or(service.memory.wait_for_any_room());
            self.open.waiting(WaitsFor::Memory, room).await?;
        } else {
            if let Some(table) = self.last_table.as_ref().and_then(Weak::upgrade) {
                let room = service.stop.or(table.wait_for_insert_room());
                self.open.waiting(WaitsFor::Table, room).await?;
            }
            let room = service.stop.or(service.memory.wait_for_room());
            self.open.waiting(WaitsFor::Memory, room).await?;
            if opens_items(service, items.iter().map(|item| &*item.table)) {
                let room = service.stop.or(service.memory.wait_for_growing_room());
                self.open.waiting(WaitsFor::Memory, room).await?;
            }
        }
        Ok(())
    }

    /// Inserts items that may wait for so long, and refuses those that do.
    async fn insert_within(
        &mut self,
        service: &Service,
        items: &mut Vec<NewItem>,
        max_wait: Duration,
    ) -> Result<()> {
        let begin = Instant::now();
        let room = tokio::time::timeout(max_wait, self.wait_for_room(service, items)).await;
        let Ok(room) = room else {
            let keys: Vec<u64> = items.iter().map(|item| item.key).collect();
            let why = |&key| (key, Refusal::Waited("The server has no room.".into()));
            self.confirm.refused(keys.iter().map(why).collect());
            self.confirm.confirmed(&keys);
            return Ok(());
        };
        room?;
        self.insert(service, items)?;
        if !items.is_empty() {
            // The caller ends this wait when all are confirmed.
            tokio::time::sleep(max_wait.saturating_sub(begin.elapsed())).await;
            for table in service.tables.all() {
                table.refuse_inserts(&self.confirm);
            }
        }
        Ok(())
    }

    fn insert(&mut self, service: &Service, items: &mut Vec<NewItem>) -> Result<()> {
        self.open.count_items(items.len());
        let trajectories = items.iter_mut().map(|item| &mut item.trajectory);
        let adopted = self.adopter.adopt(trajectories);
        let inserted = self.insert_runs(service, items);
        adopted.give_back(items);
        inserted
    }

    /// Inserts items, and leaves those in the list that wait or are refused.
    fn insert_runs(&mut self, service: &Service, items: &mut Vec<NewItem>) -> Result<()> {
        // Nothing waits, so the items of all tables are given, or none.
        let mut rest = std::mem::take(items);
        while !rest.is_empty() {
            let others = rest.iter().position(|item| item.table != rest[0].table);
            let after = rest.split_off(others.unwrap_or(rest.len()));
            let inserted = self.insert_run(service, &mut rest);
            items.append(&mut rest);
            rest = after;
            if inserted.is_err() {
                items.append(&mut rest);
                return inserted;
            }
        }
        Ok(())
    }

    /// Inserts items of one table, and leaves those in the list that wait.
    fn insert_run(&mut self, service: &Service, items: &mut Vec<NewItem>) -> Result<()> {
        let (name, table) = service.tables.get(&items[0].table)?;
        self.open.use_table(name);
        self.last_table = Some(Arc::downgrade(table));
        if is_growth(&items[0]) {
            items.drain(..).try_for_each(|item| grow(table, item, &self.confirm))?;
            service.after_insert(Some(table));
            return Ok(());
        }
        self.has_openings |= items[0].change.is_some();
        table.insert_from(items, &self.confirm)?;
        service.after_insert(Some(table));
        Ok(())
    }

    async fn insert_items(&mut self, items: &mut Vec<NewItem>) -> Result<()> {
        let service = self.service.get_for_stream()?;
        let inserted = match self.max_wait {
            Some(max_wait) => self.insert_within(&service, items, max_wait).await,
            None => match self.wait_for_room(&service, items).await {
                Ok(()) => self.insert(&service, items),
                Err(error) => Err(error),
            },
        };
        inserted.map_err(|error| service.stop.explain(error))
    }
}

impl Drop for LocalInsertSink {
    /// A writer that gives up an item with rollouts, or with a time limit, does not want it.
    fn drop(&mut self) {
        let unwanted = self.has_openings || self.max_wait.is_some();
        let table = self.last_table.as_ref().filter(|_| unwanted).and_then(Weak::upgrade);
        if let Some(table) = table {
            table.cancel_inserts(&self.confirm);
        }
    }
}

impl InsertSink for LocalInsertSink {
    fn limit_wait(&mut self, max_wait: Option<Duration>) {
        self.max_wait = max_wait;
    }

    fn wait_here(&self) -> Option<WaitHere> {
        None
    }

    fn send(&mut self, mut batch: InsertBatch) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.insert_items(&mut batch.items).await })
    }

    fn give<'a>(&'a mut self, items: &'a mut Vec<NewItem>) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.insert_items(items))
    }
}

struct LocalSampleStream {
    open: OpenStream,
    service: LocalService,
    requests: VecDeque<LocalRequest>,
    /// Error that ended the stream. Later calls return it again, like a stream over the network.
    failure: Option<Error>,
}

struct LocalRequest {
    table: String,
    remaining: usize,
    timeout: Option<Duration>,
    options: SampleOptions,
    columns: Box<[u32]>,
    spans: Box<[ColumnSpan]>,
    /// Selected part of the items; absent before the first items, and if they stay whole.
    selection: Option<Selection>,
    /// Items that were taken from the table of a server with a store, and not handed over: a
    /// caller that gives up while the disk is read finds them here.
    taken: Vec<Sampled>,
    /// Why the request fails once these were handed over.
    lost: Option<Error>,
}

impl LocalSampleStream {
    async fn next_samples(&mut self) -> Result<Vec<Sampled>> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        let Some(request) = self.requests.front_mut() else {
            return Err(Error::failed_precondition("No samples were requested on this stream."));
        };
        let sampled = match self.service.get_for_stream() {
            Ok(service) => {
                let sampled = sample(&service, &self.open, request).await;
                sampled.map_err(|error| service.stop.explain(error))
            }
            Err(error) => Err(error),
        };
        match sampled {
            Ok(samples) => {
                request.remaining = request.remaining.saturating_sub(samples.len());
                request.options = request.options.after_items(&samples);
                if request.remaining == 0 || samples.is_empty() {
                    self.requests.pop_front();
                }
                Ok(samples)
            }
            Err(error) => {
                self.failure = Some(error.clone());
                Err(error)
            }
        }
    }
}

async fn sample(
    service: &Service,
    stream: &Stream,
    request: &mut LocalRequest,
) -> Result<Vec<Sampled>> {
    let (name, table) = service.tables.get(&request.table)?;
    stream.use_table(name);
    let Some(tier) = &service.memory.tier else {
        return take_samples(service, stream, request, table).await;
    };
    let mut num_lost_batches = 0;
    loop {
        if request.taken.is_empty() {
            let is_over = !may_leave_out(&request.options, table);
            if let Some(error) = &request.lost
                && (is_over || num_lost_batches == MAX_LOST_BATCHES)
            {
                return Err(error.clone());
            }
            request.taken = take_samples(service, stream, request, table).await?;
            if request.taken.is_empty() {
                return Ok(Vec::new());
            }
        }
        let together = num_together(&request.taken);
        let mut samples = request.taken[..together].to_vec();
        let lost = tier.read(table, &mut samples).await;
        request.taken.drain(..together);
        request.lost = request.lost.take().or(lost);
        if !samples.is_empty() {
            return Ok(samples);
        }
        num_lost_batches += 1;
    }
}

/// Number of the first of these items that are handed over together, because all their payloads
/// are in memory then: at least one.
fn num_together(taken: &[Sampled]) -> usize {
    let mut bytes = 0;
    let fits = |sample: &&Sampled| {
        bytes += sample.trajectory.chunk_bytes();
        bytes <= MAX_LOADED_BYTES
    };
    taken.iter().take_while(fits).count().max(1)
}

async fn take_samples(
    service: &Service,
    stream: &Stream,
    request: &mut LocalRequest,
    table: &Arc<Table>,
) -> Result<Vec<Sampled>> {
    let LocalRequest { remaining, timeout, options, .. } = *request;
    let LocalRequest { columns, spans, .. } = &*request;
    let is_part = !columns.is_empty() || !spans.is_empty() || options.window.is_some();
    if request.selection.is_none() && is_part {
        let selection = Selection::new(table, columns)?.with_window(options.window, spans)?;
        request.selection = Some(selection);
    }
    let wanted = options.at_once(MAX_BATCH, remaining);
    let mut samples = if let Some(samples) = table.try_sample_with(wanted, options) {
        samples
    } else {
        let interrupted = service.interrupted();
        let samples = table.sample_until(wanted, timeout, options, interrupted, None);
        let samples = stream.waiting_since(options.waits_since, samples).await;
        samples.map_err(|error| explain_timeout(service, table, timeout, error))?
    };
    stream.count_items(samples.len());
    if let Some(selection) = &mut request.selection {
        selection.apply_to_all(&mut samples)?;
    }
    Ok(samples)
}

impl SampleStream for LocalSampleStream {
    fn request(&mut self, request: &SampleRequest<'_>) -> Result<()> {
        let SampleRequest { table, num_samples, timeout, options, columns, spans } = *request;
        if num_samples == 0 {
            return Err(Error::invalid_argument("num_samples must be at least 1, got 0."));
        }
        self.requests.push_back(LocalRequest {
            table: table.to_owned(),
            remaining: num_samples,
            timeout,
            options,
            columns: columns.into(),
            spans: spans.into(),
            selection: None,
            taken: Vec::new(),
            lost: None,
        });
        Ok(())
    }

    fn receive(&mut self) -> BoxFuture<'_, Result<Vec<Sampled>>> {
        Box::pin(self.next_samples())
    }
}
