// SPDX-License-Identifier: Apache-2.0
//! Loading a checkpoint into the tables of a server before it starts.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use reverb_base::Result;
use reverb_data::Chunk;
use reverb_engine::{Restored, Table};

use crate::directory::{ITEMS, is_complete, latest};
use crate::failure::damaged;
use crate::filling::{FillOptions, Filling};
use crate::held::Held;
use crate::manifest::Manifest;
use crate::name::ServerName;
use crate::pipeline::check;
use crate::progress::Progress;
use crate::stored::{ATTEMPTS, Stored, StoredTable, is_gone};

/// Options of a load.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Directory of checkpoints.
    pub root: PathBuf,
    /// The checkpoint to load, and no other.
    pub load: Option<PathBuf>,
    /// Checkpoint to load if `root` has none.
    pub fallback: Option<PathBuf>,
    /// Name of the server: only checkpoints of that name are loaded. `None` loads the last one.
    pub name: Option<ServerName>,
    /// True if tables get the stored settings. Otherwise they keep their own.
    pub restore_settings: bool,
    /// True if a table that keeps its own settings may not have another signature than the stored
    /// one.
    pub keep_signatures: bool,
}

/// Result of a load.
#[derive(Debug)]
pub struct Loaded {
    /// Directory of the checkpoint.
    pub path: PathBuf,
    /// Time of its snapshot, as far as it is known.
    pub taken_at: Option<SystemTime>,
    /// Number of items in it.
    pub num_items: u64,
    /// All tables of the server, in their order. Tables whose settings were restored are new
    /// objects.
    pub tables: Vec<Arc<Table>>,
}

/// Loads the chosen checkpoint into `tables`, or the latest complete one; `None` if there is none.
///
/// Reads and checks everything before it changes any table. Each chunk becomes the one that `adopt`
/// returns. Afterwards `held` has the name of the server and the checkpoint, unless that is in
/// another directory than `root`.
///
/// # Errors
///
/// `InvalidArgument` if the checkpoint has a table that the server lacks; `DataLoss` with the file
/// and the position if it is damaged; `FailedPrecondition` if another running server has the name
/// or the checkpoint, if it cannot be read, or if a table does not accept an item; `Cancelled` if
/// `progress` was cancelled. After an error the tables are unchanged.
pub fn load(
    tables: &[Arc<Table>],
    options: &LoadOptions,
    progress: &Arc<Progress>,
    held: &mut Held,
    adopt: impl FnMut(Chunk) -> Result<Chunk>,
) -> Result<Option<Loaded>> {
    let start = Instant::now();
    if let Some(name) = &options.name {
        held.take_name(&options.root, name, progress)?;
    }
    let Some(stored) = find(options, progress, held)? else { return Ok(None) };
    tracing::debug!("checkpoint {}: is being loaded", stored.path().display());
    let about = format!("checkpoint {}", stored.path().display());
    let LoadOptions { restore_settings, keep_signatures, .. } = *options;
    let settings = FillOptions { restore_settings, keep_signatures };
    let mut filling = Filling::new(tables, stored.tables(), settings, &about)?;
    progress.expect_items(stored.num_items().unwrap_or(0));
    let chunks = stored.chunks(progress, adopt)?;
    let mut num_items = 0;
    stored.for_each_growing(&chunks, |table, item| filling.push_growing(table, item))?;
    stored.for_each_item(progress, &chunks, |table, item| {
        num_items += 1;
        filling.push(table, item)
    })?;
    for (table, restored) in stored.tables().iter().zip(filling.restored()) {
        check_count(&stored, table, restored)?;
    }
    check(progress.cancelled())?;
    let all = filling.install()?;
    tracing::info!("{about}: {num_items} items were loaded in {:?}", start.elapsed());
    let (path, taken_at) = (stored.path().to_owned(), stored.taken_at());
    Ok(Some(Loaded { path, taken_at, num_items, tables: all }))
}

/// The checkpoint that would be loaded, and when it was taken; `None` if there is none, or if the
/// server with this store has saved it.
///
/// # Errors
///
/// `FailedPrecondition` if the directory cannot be read, `DataLoss` if the checkpoint is damaged.
pub fn latest_of_another(
    options: &LoadOptions,
    store: u128,
) -> Result<Option<(PathBuf, SystemTime)>> {
    let path = match latest(&options.root, options.name.as_ref())? {
        Some(path) => Some(path),
        None => complete_fallback(options)?,
    };
    let Some(path) = path else { return Ok(None) };
    let manifest = Manifest::read_or_empty(&path)?;
    let taken_at = manifest.taken_at.filter(|_| manifest.store != Some(store));
    Ok(taken_at.map(|at| (path, at)))
}

fn find(options: &LoadOptions, progress: &Progress, held: &mut Held) -> Result<Option<Stored>> {
    if let Some(path) = &options.load {
        let found = held.take_chosen(&options.root, path, progress)?;
        return Stored::read(found).map(Some);
    }
    for attempt in 1.. {
        let found = held.take_latest(&options.root, options.name.as_ref(), progress)?;
        let Some(found) = found else { break };
        match Stored::read(found.clone()) {
            Ok(stored) => {
                warn_of_name(&stored, options);
                return Ok(Some(stored));
            }
            // Another server has replaced it by a newer one, on a file system without locks.
            Err(error) if attempt < ATTEMPTS && is_gone(&found) => {
                held.release_checkpoint();
                drop(error);
            }
            Err(error) => return Err(error),
        }
    }
    if let Some(path) = complete_fallback(options)? {
        return Stored::read(path).map(Some);
    }
    warn_of_others(options)?;
    Ok(None)
}

/// The checkpoint to load where the directory has none, if it is there.
fn complete_fallback(options: &LoadOptions) -> Result<Option<PathBuf>> {
    let Some(path) = &options.fallback else { return Ok(None) };
    Ok(is_complete(path)?.then(|| path.clone()))
}

fn warn_of_name(stored: &Stored, options: &LoadOptions) {
    if let (None, Some(name)) = (&options.name, stored.server_name()) {
        tracing::warn!(
            "checkpoint {}: it was saved by a server named {name}, and is loaded because this \
             server has no name and it is the last one in its directory",
            stored.path().display()
        );
    }
}

/// If the server has no checkpoint of its own, warns of the checkpoints of other servers.
fn warn_of_others(options: &LoadOptions) -> Result<()> {
    if let (Some(name), Some(other)) = (&options.name, latest(&options.root, None)?) {
        let whose = Manifest::read_or_empty(&other)?.name;
        let whose =
            whose.map_or_else(|| "has no name".to_owned(), |name| format!("is named {name}"));
        tracing::warn!(
            "checkpoint directory {}: nothing is loaded, for there is no checkpoint of a server \
             named {name}; the last one, {}, is of a server that {whose}. Give it as \
             fallback_checkpoint_path to begin with it",
            options.root.display(),
            other.display()
        );
    }
    Ok(())
}

/// If the manifest has no number of items, a table must have at least as many as its counters say.
fn check_count(stored: &Stored, table: &StoredTable, restored: &Restored) -> Result<()> {
    let counters = table.counters();
    let counted = counters.inserts - counters.deletes;
    let there = (restored.len() as u64 + restored.num_removed() + stored.num_left_out()) as i64;
    if stored.is_counted() || there >= counted {
        return Ok(());
    }
    let what = format!(
        "it has {there} items of table {}, whose counters say that it had {counted}.",
        table.name()
    );
    Err(damaged(&stored.path().join(ITEMS), "as a whole", &what))
}
