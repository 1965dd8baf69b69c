// SPDX-License-Identifier: Apache-2.0
//! A disk that fails as a test says. Its files are files of the system.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::disk::{Disk, DiskFile, FileSystem, Space, SystemDisk};

/// What goes wrong from now on.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Most bytes that one write takes.
    pub short_writes: Option<usize>,
    /// Bytes that can be written before the disk is full, whatever `space` says.
    pub room: Option<u64>,
    /// Every write fails with this error.
    pub write_error: Option<Errno>,
    /// Every read fails with this error.
    pub read_error: Option<Errno>,
    /// Every sync fails with this error, also of a directory.
    pub sync_error: Option<Errno>,
    /// Every deletion fails with this error.
    pub delete_error: Option<Errno>,
    /// The first byte of every read is wrong.
    pub wrong_byte: bool,
    /// Speed of writes. They hang while it is 0.
    pub bytes_per_second: Option<u64>,
    /// Size of the file system, in place of the true one.
    pub space: Option<Space>,
}

/// A disk that fails. A clone is the same disk.
#[derive(Debug, Clone, Default)]
pub struct FailingDisk(Arc<State>);

#[derive(Debug, Default)]
struct State {
    faults: Mutex<Faults>,
    /// Tells writes that are slow.
    changed: Condvar,
}

impl FailingDisk {
    /// Changes what goes wrong, also for files that are open and writes that hang.
    pub fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.0.faults.lock());
        self.0.changed.notify_all();
    }
}

impl State {
    fn sync(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let error = self.faults.lock().sync_error;
        error.map_or_else(sync, |error| Err(error.into()))
    }

    /// Number of bytes that a write of so many takes now.
    fn allowed(&self, num_bytes: usize) -> io::Result<usize> {
        let mut faults = self.faults.lock();
        let begin = Instant::now();
        while let Some(speed) = faults.bytes_per_second {
            let time = Duration::try_from_secs_f64(num_bytes as f64 / speed as f64);
            let Some(end) = time.ok().and_then(|time| begin.checked_add(time)) else {
                self.changed.wait(&mut faults);
                continue;
            };
            if self.changed.wait_until(&mut faults, end).timed_out() {
                break;
            }
        }
        if let Some(error) = faults.write_error {
            return Err(error.into());
        }
        let mut allowed = num_bytes.min(faults.short_writes.unwrap_or(usize::MAX));
        if let Some(room) = &mut faults.room {
            allowed = allowed.min(*room as usize);
            *room -= allowed as u64;
            if allowed == 0 && num_bytes > 0 {
                return Err(Errno::NOSPC.into());
            }
        }
        Ok(allowed)
    }
}

impl Disk for FailingDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(FailingFile { file: SystemDisk.create(path)?, state: self.0.clone() }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(FailingFile { file: SystemDisk.open(path)?, state: self.0.clone() }))
    }

    fn delete(&self, path: &Path) -> io::Result<()> {
        match self.0.faults.lock().delete_error {
            Some(error) => Err(error.into()),
            None => SystemDisk.delete(path),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        SystemDisk.rename(from, to)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        self.0.sync(|| SystemDisk.sync_directory(directory))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        SystemDisk.list(directory)
    }

    fn space(&self, directory: &Path) -> io::Result<Space> {
        self.0.faults.lock().space.map_or_else(|| SystemDisk.space(directory), Ok)
    }

    fn kind(&self, directory: &Path) -> io::Result<FileSystem> {
        SystemDisk.kind(directory)
    }
}

#[derive(Debug)]
struct FailingFile {
    file: Arc<dyn DiskFile>,
    state: Arc<State>,
}

impl DiskFile for FailingFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let allowed = self.state.allowed(bytes.len())?;
        self.file.write_at(&bytes[..allowed], offset)
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let faults = self.state.faults.lock().clone();
        if let Some(error) = faults.read_error {
            return Err(error.into());
        }
        self.file.read_exact_at(bytes, offset)?;
        if let Some(first) = bytes.first_mut().filter(|_| faults.wrong_byte) {
            *first = !*first;
        }
        Ok(())
    }

    fn read_cached_at(&self, bytes: &mut [u8], offset: u64) -> bool {
        let Faults { read_error, wrong_byte, .. } = *self.state.faults.lock();
        // A read that fails does so when it waits.
        read_error.is_none() && !wrong_byte && self.file.read_cached_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.state.sync(|| self.file.sync_data())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_fails_as_it_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let disk = FailingDisk::default();
        let path = directory.path().join("file");
        let file = disk.create(&path).unwrap();
        disk.set(|faults| faults.short_writes = Some(4));
        assert_eq!(file.write_at(b"123456", 0).unwrap(), 4);
        disk.set(|faults| *faults = Faults { room: Some(5), ..Faults::default() });
        assert_eq!(file.write_at(b"123456", 0).unwrap(), 5);
        let full = file.write_at(b"6", 5).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        let wrong = Faults { wrong_byte: true, write_error: Some(Errno::IO), ..Faults::default() };
        disk.set(|faults| *faults = wrong);
        assert_eq!(file.write_at(b"6", 5).unwrap_err().raw_os_error(), Some(5));
        let mut bytes = [0; 2];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [!b'1', b'2']);
        disk.set(|faults| faults.read_error = Some(Errno::IO));
        assert!(file.read_exact_at(&mut bytes, 0).is_err());
        disk.set(|faults| faults.delete_error = Some(Errno::ROFS));
        assert!(disk.delete(&path).is_err() && path.exists());
        assert!(file.sync_data().is_ok() && disk.sync_directory(directory.path()).is_ok());
        disk.set(|faults| faults.sync_error = Some(Errno::IO));
        assert!(file.sync_data().is_err() && disk.sync_directory(directory.path()).is_err());
    }

    #[test]
    fn a_write_hangs_until_it_is_let_go() {
        let directory = tempfile::tempdir().unwrap();
        let disk = FailingDisk::default();
        disk.set(|faults| faults.bytes_per_second = Some(0));
        let file = disk.create(&directory.path().join("file")).unwrap();
        let writing = std::thread::spawn(move || file.write_at(b"1", 0));
        disk.set(|faults| faults.bytes_per_second = Some(1 << 30));
        assert_eq!(writing.join().unwrap().unwrap(), 1);
    }
}
