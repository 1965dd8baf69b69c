// SPDX-License-Identifier: Apache-2.0
//! The calls by which a store keeps its files, so that tests can put a disk that fails in their
//! place.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use reverb_base::open_file;

/// The files of a store. Paths are whole.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Creates a file that only its owner may read; fails if there is one.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a regular file, to read it.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Deletes a file. Who has it open can still read it.
    fn delete(&self, path: &Path) -> io::Result<()>;

    /// Gives a file another name, which no file has. It is on disk after `sync_directory`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Brings names to the disk that were given, changed and taken in a directory.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;

    /// Names in a directory.
    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>>;

    /// Size of the file system of a directory.
    fn space(&self, directory: &Path) -> io::Result<Space>;

    /// Kind of the file system of a directory.
    fn kind(&self, directory: &Path) -> io::Result<FileSystem>;
}

/// An open file, which is read and written at positions.
pub trait DiskFile: fmt::Debug + Send + Sync {
    /// Writes the first of these bytes, and returns their number, which may be less than all.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Fills `bytes` with those at `offset`; `UnexpectedEof` if the file ends before.
    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;

    /// Fills `bytes` with those at `offset`, if the system has them in memory. Returns false
    /// otherwise, and where the system cannot tell; never waits.
    fn read_cached_at(&self, bytes: &mut [u8], offset: u64) -> bool {
        let _ = (bytes, offset);
        false
    }

    /// Brings what was written to the disk. After an error, what was written may never get there,
    /// and a second call may say that it has: the same bytes have to go to another file.
    fn sync_data(&self) -> io::Result<()>;

    /// Cuts the file to a length.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Its length in bytes.
    fn size(&self) -> io::Result<u64>;
}

/// Bytes of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// All of them.
    pub total_bytes: u64,
    /// Those that this process may still write.
    pub available_bytes: u64,
}

/// File systems that behave in a special way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSystem {
    /// Its files are in memory.
    Memory,
    /// The changes of a container, which end with it.
    Overlay,
    /// Its files are on another machine.
    Network,
    /// Any other.
    Other,
}

/// The disk of the system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemDisk;

impl Disk for SystemDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
        Ok(Arc::new(file))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(open_file(path, OpenOptions::new().read(true))?))
    }

    fn delete(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn space(&self, directory: &Path) -> io::Result<Space> {
        let found = rustix::fs::statvfs(directory)?;
        Ok(Space {
            total_bytes: found.f_blocks.saturating_mul(found.f_frsize),
            available_bytes: found.f_bavail.saturating_mul(found.f_frsize),
        })
    }

    #[cfg(target_os = "linux")]
    fn kind(&self, directory: &Path) -> io::Result<FileSystem> {
        // `linux/magic.h`.
        Ok(match rustix::fs::statfs(directory)?.f_type as u32 {
            0x0102_1994 | 0x8584_58f6 => FileSystem::Memory,
            0x794c_7630 => FileSystem::Overlay,
            0x6969 => FileSystem::Network,
            _ => FileSystem::Other,
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn kind(&self, _directory: &Path) -> io::Result<FileSystem> {
        Ok(FileSystem::Other)
    }
}

impl DiskFile for File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, bytes, offset)
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, bytes, offset)
    }

    #[cfg(target_os = "linux")]
    fn read_cached_at(&self, bytes: &mut [u8], offset: u64) -> bool {
        use rustix::io::{ReadWriteFlags, preadv2};
        let wanted = bytes.len();
        let into = &mut [io::IoSliceMut::new(bytes)];
        preadv2(self, into, offset, ReadWriteFlags::NOWAIT).is_ok_and(|read| read == wanted)
    }

    fn sync_data(&self) -> io::Result<()> {
        Self::sync_data(self)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Self::set_len(self, len)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_where_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let file = SystemDisk.create(&path).unwrap();
        assert_eq!(file.write_at(b"12345", 10).unwrap(), 5);
        let again = SystemDisk.create(&path).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(SystemDisk.list(directory.path()).unwrap(), ["file"]);
        SystemDisk.delete(&path).unwrap();
        assert_eq!(SystemDisk.open(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        let mut bytes = [1; 7];
        file.read_exact_at(&mut bytes, 8).unwrap();
        assert_eq!(&bytes, b"\0\x0012345");
        if file.read_cached_at(&mut bytes, 8) {
            assert_eq!(&bytes, b"\0\x0012345");
        }
        assert!(!file.read_cached_at(&mut bytes, 9), "the file ends before");
        let beyond = file.read_exact_at(&mut bytes, 9).unwrap_err();
        assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
        file.set_len(12).unwrap();
        assert!(file.sync_data().is_ok() && file.size().unwrap() == 12);
        let (path, other) = (directory.path().join("old"), directory.path().join("new"));
        SystemDisk.create(&path).unwrap();
        SystemDisk.rename(&path, &other).unwrap();
        SystemDisk.sync_directory(directory.path()).unwrap();
        assert_eq!(SystemDisk.list(directory.path()).unwrap(), ["new"]);
    }

    #[test]
    fn file_systems_are_known() {
        let space = SystemDisk.space(Path::new("/")).unwrap();
        assert!(space.available_bytes <= space.total_bytes && space.total_bytes > 1 << 20);
        if cfg!(target_os = "linux") && Path::new("/dev/shm").is_dir() {
            assert_eq!(SystemDisk.kind(Path::new("/dev/shm")).unwrap(), FileSystem::Memory);
            assert_eq!(SystemDisk.kind(Path::new("/proc")).unwrap(), FileSystem::Other);
        }
    }
}
