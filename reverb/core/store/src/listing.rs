// SPDX-License-Identifier: Apache-2.0
//! The files of a journal that are found at a start.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use reverb_base::{Error, Result};
use reverb_files::DiskFile;

use crate::directory::{Directory, is_unusable, parse_name, read_start};
use crate::head::{FileKind, HEAD_BYTES, Head};
use crate::pace::Pace;

/// Files by their numbers, with their heads, if these are whole.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) data: BTreeMap<u32, Option<Head>>,
    pub(crate) logs: BTreeMap<u32, Option<Head>>,
    pub(crate) bases: BTreeMap<u32, Option<Head>>,
    /// Bases that were not finished.
    pub(crate) parts: Vec<PathBuf>,
    /// Above all numbers that a file has or names.
    pub(crate) next_number: u32,
}

impl Listing {
    /// Lists the files of a directory, which gets the id that they have.
    pub(crate) fn read(directory: &mut Directory) -> Result<Self> {
        let next_number = directory.newest_log.saturating_add(1);
        let mut listing = Self { next_number, ..Self::default() };
        let names = directory.disk.list(&directory.path);
        for name in names.map_err(|error| is_unusable(&directory.path, &error))? {
            let (path, name) = (directory.path.join(&name), name.to_string_lossy());
            let part = name.strip_suffix(".part").map(|start| format!("{start}.seg"));
            let Some((kind, number)) = parse_name(part.as_deref().unwrap_or(&name)) else {
                continue;
            };
            listing.next_number = listing.next_number.max(number.saturating_add(1));
            if part.is_some() {
                listing.parts.push(path);
                continue;
            }
            let head = read_start(&*directory.disk, &path).as_ref().and_then(Head::parse);
            // A head that was written in part is as good as none.
            let len = directory.disk.open(&path).and_then(|file| file.size());
            let head = head.filter(|_| len.is_ok_and(|len| len >= HEAD_BYTES as u64));
            if let Some(head) = &head {
                listing.next_number = listing.next_number.max(head.before.saturating_add(1));
            }
            listing.of(kind).insert(number, head);
        }
        let heads = listing.bases.values().chain(listing.logs.values());
        let newest = heads.flatten().max_by_key(|head| (head.kind, head.number));
        if let Some(head) = newest.filter(|head| head.store != directory.id) {
            (directory.id, directory.newest_log, directory.stopped_at) = (head.store, 0, 0);
        }
        listing.check(directory)?;
        Ok(listing)
    }

    fn of(&mut self, kind: FileKind) -> &mut BTreeMap<u32, Option<Head>> {
        match kind {
            FileKind::Data => &mut self.data,
            FileKind::Log => &mut self.logs,
            FileKind::Base => &mut self.bases,
        }
    }

    /// All files with whole heads are of this store.
    fn check(&self, directory: &Directory) -> Result<()> {
        let kinds = [
            (FileKind::Data, &self.data),
            (FileKind::Log, &self.logs),
            (FileKind::Base, &self.bases),
        ];
        for (kind, files) in kinds {
            for (&number, head) in files {
                let Some(head) = head else { continue };
                let path = directory.file(kind, number);
                if head.is_newer() {
                    return Err(Error::failed_precondition(format!(
                        "store {} was written by a newer release: use that one",
                        path.display()
                    )));
                }
                let is_ours =
                    head.store == directory.id && (head.kind, head.number) == (kind, number);
                if !is_ours && !head.is_tier {
                    return Err(Error::data_loss(format!(
                        "store {} is of another store, or has another's name: move it away",
                        path.display()
                    )));
                }
            }
        }
        Ok(())
    }
}

/// Opens a file, and returns its length too.
pub(crate) fn open(
    directory: &Directory,
    kind: FileKind,
    number: u32,
) -> io::Result<(Arc<dyn DiskFile>, u64)> {
    let file = directory.disk.open(&directory.file(kind, number))?;
    let len = file.size()?;
    Ok((Pace::apply(directory.pace.as_ref(), file), len))
}

fn starts_like_a_head(directory: &Directory, kind: FileKind, path: &Path) -> io::Result<bool> {
    let file = directory.disk.open(path)?;
    let mut start = vec![0; (file.size()? as usize).min(kind.magic().len())];
    file.read_exact_at(&mut start, 0)?;
    Ok(kind.magic().starts_with(&start))
}

/// Returns true if a file that nothing needs is ours: it begins with our head, or has none at all.
pub(crate) fn is_ours(directory: &Directory, kind: FileKind, number: u32) -> bool {
    let path = directory.file(kind, number);
    match read_start(&*directory.disk, &path) {
        Some(start) => match Head::parse(&start) {
            Some(head) => head.store == directory.id,
            None => start.iter().all(|&byte| byte == 0),
        },
        // A file that was created, and of whose head at most a part was written.
        None => starts_like_a_head(directory, kind, &path).unwrap_or(false),
    }
}
