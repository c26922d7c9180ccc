//! The database file: objects, the recent history as undo records, and the revision, committed together.

use crate::object::{Event, Object};
use ambit_store::{Key, RestoreError, Revision, Saved, Undo, Version};
use redb::{ReadableDatabase as _, ReadableTable as _, TableDefinition};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Key text → revision (8 bytes, big endian) and JSON.
const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
/// Revision → key and what the write replaced.
const HISTORY: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("history");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// Layout of the tables above. A file with another number is refused.
const FORMAT: u64 = 1;
/// Memory redb may use to cache pages; all reads are served from our own store, so a little is enough.
const CACHE_BYTES: usize = 8 << 20;

mod writer;

pub(crate) use writer::Writer;

/// An open database file.
pub(crate) struct Disk {
    database: redb::Database,
    path: PathBuf,
}

/// The database file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// Another process has it open.
    #[error("{} is in use by another process: stop that one first, or choose another state directory", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// Its content is damaged or not ours.
    #[error("{} is damaged or not a database of this program ({detail}): restore a backup, or move it away to start empty", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        detail: String,
    },
    /// Its records contradict each other.
    #[error("{} contradicts itself: restore a backup, or move it away to start empty", path.display())]
    Contradiction {
        /// The file.
        path: PathBuf,
        /// What was found.
        #[source]
        source: RestoreError,
    },
    /// Another version of the program wrote it.
    #[error("{} has format {found}, this program reads format {FORMAT}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The format found.
        found: u64,
    },
    /// Reading or writing failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: Box<redb::Error>,
    },
}

/// A file that was closed after a failed commit, and is as the commit before left it.
struct Closed(PathBuf);

impl Closed {
    fn open(self) -> Result<Disk, (Self, DiskError)> {
        Disk::open_file(&self.0).map_err(|error| (self, error))
    }
}

impl DiskError {
    /// Whether there is no room for what was to be written: the file is as it was, and other room may come.
    fn is_full(&self) -> bool {
        use std::io::ErrorKind;
        let Self::Io { source, .. } = self else { return false };
        let redb::Error::Io(error) = &**source else { return false };
        matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
    }
}

impl Disk {
    /// Opens or creates the file and reads all of it.
    pub(crate) fn open(path: &Path) -> Result<(Self, Saved<Arc<Object>>), DiskError> {
        make_private(path).map_err(|e| DiskError::Io {
            action: "create",
            path: path.to_owned(),
            source: Box::new(redb::Error::Io(e)),
        })?;
        let disk = Self::open_file(path)?;
        let saved = disk.load()?;
        Ok((disk, saved))
    }

    fn open_file(path: &Path) -> Result<Self, DiskError> {
        let mut builder = redb::Builder::new();
        builder.set_cache_size(CACHE_BYTES);
        let database = builder.create(path).map_err(|e| open_error(path, e))?;
        Ok(Self { database, path: path.to_owned() })
    }

    fn close(self) -> Closed {
        Closed(self.path)
    }

    fn load(&self) -> Result<Saved<Arc<Object>>, DiskError> {
        self.create_tables().map_err(|e| self.io("set up", e))?;
        let read = |e| self.io("read", e);
        let reading = self.database.begin_read().map_err(|e| read(e.into()))?;
        let meta = reading.open_table(META).map_err(|e| read(e.into()))?;
        let number =
            |name| Ok::<_, DiskError>(meta.get(name).map_err(|e| read(e.into()))?.map_or(0, |v| v.value()));
        let found = number("format")?;
        if found != FORMAT {
            return Err(DiskError::Format { path: self.path.clone(), found });
        }
        let mut saved = Saved {
            revision: number("revision")?,
            compacted: number("compacted")?,
            objects: Vec::new(),
            history: Vec::new(),
        };
        let objects = reading.open_table(OBJECTS).map_err(|e| read(e.into()))?;
        for entry in objects.iter().map_err(|e| read(e.into()))? {
            let (key, value) = entry.map_err(|e| read(e.into()))?;
            saved.objects.push(self.decode_object(key.value(), value.value())?);
        }
        let history = reading.open_table(HISTORY).map_err(|e| read(e.into()))?;
        for entry in history.iter().map_err(|e| read(e.into()))? {
            let (revision, value) = entry.map_err(|e| read(e.into()))?;
            saved.history.push(self.decode_undo(revision.value(), value.value())?);
        }
        Ok(saved)
    }

    fn create_tables(&self) -> Result<(), redb::Error> {
        let writing = self.database.begin_write()?;
        {
            writing.open_table(OBJECTS)?;
            writing.open_table(HISTORY)?;
            let mut meta = writing.open_table(META)?;
            if meta.get("format")?.is_none() {
                meta.insert("format", FORMAT)?;
            }
        }
        Ok(writing.commit()?)
    }

    /// Persists writes, all or none; returns once they are on the disk.
    pub(crate) fn commit(&self, events: &[Arc<Event>], compact: Option<Revision>) -> Result<(), DiskError> {
        self.try_commit(events, compact).map_err(|e| self.io("write to", e))
    }

    fn try_commit(&self, events: &[Arc<Event>], compact: Option<Revision>) -> Result<(), redb::Error> {
        let writing = self.database.begin_write()?;
        {
            let mut objects = writing.open_table(OBJECTS)?;
            let mut history = writing.open_table(HISTORY)?;
            let mut meta = writing.open_table(META)?;
            for event in events {
                let key = key_text(&event.key);
                match &event.new {
                    Some(object) => objects.insert(&*key, &*with_revision(event.revision, object))?,
                    None => objects.remove(&*key)?,
                };
                history.insert(event.revision, &*encode_undo(&key, event))?;
            }
            if let Some(last) = events.last() {
                meta.insert("revision", last.revision)?;
            }
            if let Some(upto) = compact {
                history.retain_in(..=upto, |_, _| false)?;
                meta.insert("compacted", upto)?;
            }
        }
        Ok(writing.commit()?)
    }

    fn decode_object(&self, key: &str, bytes: &[u8]) -> Result<(Key, Version<Arc<Object>>), DiskError> {
        let entry = || -> Option<_> { Some((parse_key(key)?, decode_version(bytes)?)) };
        entry().ok_or_else(|| self.damaged(format!("object {key:?} cannot be read")))
    }

    fn decode_undo(&self, revision: Revision, bytes: &[u8]) -> Result<Undo<Arc<Object>>, DiskError> {
        let entry = || -> Option<_> {
            let (length, rest) = bytes.split_first_chunk::<4>()?;
            let (key, old) = rest.split_at_checked(u32::from_be_bytes(*length).try_into().ok()?)?;
            let key = parse_key(std::str::from_utf8(key).ok()?)?;
            let old = if old.is_empty() { None } else { Some(decode_version(old)?) };
            Some(Undo { revision, key, old })
        };
        entry().ok_or_else(|| self.damaged(format!("history of revision {revision} cannot be read")))
    }

    fn damaged(&self, detail: String) -> DiskError {
        DiskError::Damaged { path: self.path.clone(), detail }
    }

    fn io(&self, action: &'static str, source: redb::Error) -> DiskError {
        match source {
            redb::Error::Corrupted(detail) => self.damaged(detail),
            source => DiskError::Io { action, path: self.path.clone(), source: Box::new(source) },
        }
    }
}

/// Makes an absent file, empty and readable by its owner only: the database holds secrets.
fn make_private(path: &Path) -> std::io::Result<()> {
    let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match made {
        // The name must survive a crash as well as the content does.
        Ok(file) => {
            file.sync_all()?;
            path.parent().map_or(Ok(()), |dir| std::fs::File::open(dir)?.sync_all())
        }
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e),
    }
}

fn open_error(path: &Path, error: redb::DatabaseError) -> DiskError {
    let path = path.to_owned();
    match error.into() {
        redb::Error::DatabaseAlreadyOpen => DiskError::Locked { path },
        redb::Error::Corrupted(detail) => DiskError::Damaged { path, detail },
        redb::Error::Io(e) if e.kind() == std::io::ErrorKind::InvalidData => {
            DiskError::Damaged { path, detail: e.to_string() }
        }
        source => DiskError::Io { action: "open", path, source: Box::new(source) },
    }
}

/// Parts are separated by NUL, which no name contains.
fn key_text(key: &Key) -> String {
    format!("{}\0{}\0{}", key.collection, key.namespace, key.name)
}

fn parse_key(text: &str) -> Option<Key> {
    let mut parts = text.split('\0');
    let key = Key::new(parts.next()?, parts.next()?, parts.next()?);
    parts.next().is_none().then_some(key)
}

fn with_revision(revision: Revision, object: &Object) -> Vec<u8> {
    [&revision.to_be_bytes()[..], object.json()].concat()
}

fn decode_version(bytes: &[u8]) -> Option<Version<Arc<Object>>> {
    let (revision, json) = bytes.split_first_chunk::<8>()?;
    Some(Version { revision: u64::from_be_bytes(*revision), value: Object::parse(json.to_vec()).ok()? })
}

/// Length of the key (4 bytes), key, and the replaced version unless the write created the object.
fn encode_undo(key: &str, event: &Event) -> Vec<u8> {
    let length = u32::try_from(key.len()).expect("names are limited to a few hundred bytes");
    let mut bytes = [&length.to_be_bytes()[..], key.as_bytes()].concat();
    if let Some(old) = &event.old {
        bytes.extend_from_slice(&with_revision(old.revision, &old.value));
    }
    bytes
}
