// SPDX-License-Identifier: Apache-2.0
//! Start of a server: opens the HTTP port, loads a checkpoint, then serves.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use reverb_base::figures::seconds;
use reverb_base::{Error, Result};
use reverb_checkpoint::{Held, LoadOptions, Progress, latest_of_another};
use reverb_engine::Table;
use reverb_rpc::socket_path::SocketPath;
use tokio::runtime::Handle;

use crate::service::http_port::HttpPort;
use crate::service::server::{Server, ServerOptions};
use crate::service::store::Tier;

/// Options of a server's start, besides its tables.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Options of the server itself. [`Server::open`] sets `http_port`, `checkpoints.held` and
    /// `checkpoints.restored_from`.
    pub server: ServerOptions,
    /// The checkpoint to load, and no other; for a server with a directory of checkpoints.
    pub load: Option<PathBuf>,
    /// The checkpoint to load if the directory of checkpoints has none.
    pub fallback: Option<PathBuf>,
    /// True if tables take the settings of the checkpoint instead of their own.
    pub restore_settings: bool,
    /// True if a checkpoint with another signature of a table is an error.
    pub keep_signatures: bool,
    /// HTTP port, if any.
    pub http: Option<HttpOptions>,
}

/// An HTTP port.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// Host name or address.
    pub host: String,
    /// Port; 0 picks a free one.
    pub port: u16,
    /// True if the port uses the TLS of the server's port, if that has any.
    pub tls: bool,
}

/// A server with loaded tables that does not serve yet. Dropping it closes the HTTP port and
/// removes the checkpoint's items from the tables.
#[derive(Debug)]
pub struct Opened {
    tables: GivenBack,
    options: ServerOptions,
    tier: Option<Arc<Tier>>,
    http: Option<HttpPort>,
    runtime: Handle,
}

impl Server {
    /// Opens the HTTP port, which reports "loading", and loads the chosen or latest checkpoint if
    /// there is one. Blocks meanwhile; `progress` can cancel it.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a limit out of range, an invalid path of the Unix socket, or an HTTP
    /// port that cannot be opened; errors of [`reverb_checkpoint::load()`]. After an error the
    /// tables are unchanged, and the HTTP port is closed.
    pub fn open(
        tables: Vec<Arc<Table>>,
        config: Config,
        runtime: &Handle,
        progress: &Arc<Progress>,
    ) -> Result<Opened> {
        let Config {
            server: mut options,
            load: chosen,
            fallback,
            restore_settings,
            keep_signatures,
            http,
        } = config;
        // Invalid options fail before the load, which may take long.
        options.limits.validate()?;
        if let Some(path) = &options.unix_path {
            SocketPath::from_root(path.clone())?;
        }
        let has_journal = options.store.as_ref().is_some_and(|store| store.journal.is_some());
        let growing = tables.iter().find(|table| table.config().rollouts.is_some());
        if let Some(table) = growing.filter(|_| has_journal) {
            return Err(Error::invalid_argument(format!(
                "Table {} has rollouts, which a journal does not store yet. Give the server a \
                 store without one, Store(..., journal=False), and checkpoints.",
                table.name()
            )));
        }
        let tls = options.tls.as_ref().map(|port| Arc::clone(&port.tls));
        let open = |http: HttpOptions| {
            HttpPort::open(&http.host, http.port, tls.filter(|_| http.tls), runtime)
        };
        let http = http.map(open).transpose()?;
        options.http_port = http.as_ref().map(HttpPort::port);
        let root = options.checkpoints.root.clone();
        let name = options.checkpoints.name.clone();
        let which = root.map(|root| LoadOptions {
            root,
            load: chosen,
            fallback,
            name,
            restore_settings,
            keep_signatures,
        });
        let loaded = open_store(&options, which.as_ref(), runtime, progress).and_then(|tier| {
            options.checkpoints.store = tier.as_ref().and_then(|tier| tier.journal_id());
            // Chunks of the checkpoint go to the store as they are read.
            let tables = load(tables, &mut options, which, tier.as_deref(), progress)?;
            Ok((tables, tier))
        });
        match loaded {
            Ok((tables, tier)) => {
                Ok(Opened { tables, options, tier, http, runtime: runtime.clone() })
            }
            Err(error) => {
                if let Some(http) = http {
                    http.close_on_any_thread();
                }
                Err(error)
            }
        }
    }
}

impl Opened {
    /// Starts serving; the HTTP port reports "ready".
    ///
    /// # Errors
    ///
    /// Errors of [`Server::start`]. The tables are then as they were before [`Server::open`].
    pub fn start(self) -> Result<Server> {
        let Self { tables, options, tier, http, runtime } = self;
        let server = Server::start_with(tables.all.clone(), &options, tier, &runtime)?;
        if let Some(http) = http {
            server.attach(http);
        }
        tables.keep();
        Ok(server)
    }
}

/// Opens the store. If another server has saved a checkpoint after the last commit in it, the
/// tables lived elsewhere meanwhile: the files of the store are moved away, and it begins anew.
fn open_store(
    options: &ServerOptions,
    which: Option<&LoadOptions>,
    runtime: &Handle,
    progress: &Progress,
) -> Result<Option<Arc<Tier>>> {
    let opened = Tier::open(options, runtime, progress.cancelled())?;
    let Some((tier, which)) = opened.as_ref().zip(which) else { return Ok(opened) };
    let Some((id, at)) = tier.journal_id().zip(tier.recovered_at()) else { return Ok(opened) };
    let other = latest_of_another(which, id)?;
    let Some((other, taken_at)) = other.filter(|_| which.load.is_none()) else {
        return Ok(opened);
    };
    let ago = |at: SystemTime| seconds(at.elapsed().unwrap_or_default());
    let (store, other) = (tier.path().display(), other.display());
    let times = format!(
        "its last commit is of {} ago, and another server saved checkpoint {other} {} ago",
        ago(at),
        ago(taken_at)
    );
    if taken_at <= at {
        tracing::info!("store {store}: {times}, so the tables of the store are taken");
        return Ok(opened);
    }
    // What lived elsewhere meanwhile is this shard, which may have another number of neighbours.
    tier.check_start(options.shard.as_ref(), false)?;
    let aside = tier.set_aside()?;
    tracing::warn!(
        "store {store}: {times}, so that one is loaded; the files of the store are in {}",
        aside.display()
    );
    drop(opened);
    Tier::open(options, runtime, progress.cancelled())
}

fn load(
    tables: Vec<Arc<Table>>,
    options: &mut ServerOptions,
    which: Option<LoadOptions>,
    tier: Option<&Tier>,
    progress: &Arc<Progress>,
) -> Result<GivenBack> {
    if let Some(tier) = tier.filter(|tier| tier.recovered_at().is_some()) {
        return recover(&tables, options, which.as_ref(), tier, progress);
    }
    let Some(which) = which else { return Ok(GivenBack { all: tables, is_loaded: false }) };
    let mut held = Held::default();
    let mut adopter = tier.map(|tier| tier.adopter_of_load(options.max_bytes));
    let adopt = |chunk| match &mut adopter {
        Some(adopter) => adopter.adopt(chunk),
        None => Ok(chunk),
    };
    let loaded = reverb_checkpoint::load(&tables, &which, progress, &mut held, adopt)?;
    let checkpoints = &mut options.checkpoints;
    checkpoints.held = Arc::new(held.into());
    let Some(loaded) = loaded else { return Ok(GivenBack { all: tables, is_loaded: false }) };
    checkpoints.restored_from = Some((loaded.path, loaded.taken_at));
    let loaded = GivenBack { all: loaded.tables, is_loaded: true };
    if let Some(tier) = tier {
        // Chunks of the checkpoint that no item needs are free.
        drop(adopter);
        tier.keep_loaded(&loaded.all, progress.cancelled())?;
    }
    Ok(loaded)
}

/// Fills the tables with what the store has, which is newer than any checkpoint of its server.
fn recover(
    tables: &[Arc<Table>],
    options: &mut ServerOptions,
    which: Option<&LoadOptions>,
    tier: &Tier,
    progress: &Arc<Progress>,
) -> Result<GivenBack> {
    if let Some(chosen) = which.and_then(|which| which.load.as_ref()) {
        return Err(Error::failed_precondition(format!(
            "Checkpoint {} is named for loading, and the store {} has newer tables: move the store \
             away to go back to the checkpoint, or name none.",
            chosen.display(),
            tier.path().display(),
        )));
    }
    let mut held = Held::default();
    if let Some(which) = which
        && let Some(name) = &which.name
    {
        held.take_name(&which.root, name, progress)?;
    }
    options.checkpoints.held = Arc::new(held.into());
    let recovered = tier.recover(tables, options.shard.as_ref(), progress.cancelled())?;
    let all = recovered.unwrap_or_else(|| tables.to_vec());
    Ok(GivenBack { all, is_loaded: true })
}

/// Tables that lose the checkpoint's items again unless their server starts.
#[derive(Debug)]
struct GivenBack {
    all: Vec<Arc<Table>>,
    is_loaded: bool,
}

impl GivenBack {
    fn keep(mut self) {
        self.is_loaded = false;
    }
}

impl Drop for GivenBack {
    fn drop(&mut self) {
        if self.is_loaded {
            self.all.iter().for_each(|table| table.reset());
        }
    }
}
