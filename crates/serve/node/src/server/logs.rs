//! Reads a container's log file, to its end or as it grows.

use super::log_lines::LineDecoder;
use crate::context::{Context, identity};
use crate::cri::{Cri, label};
use crate::pods::log_dir;
use ambit_api::core::v1::Pod;
use ambit_node_plan::pod::init_containers;
use ambit_proto::cri::ContainerState;
use bytes::Bytes;
use futures::Stream;
use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use std::io::{self, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

/// Bytes read at once.
const PIECE_BYTES: usize = 32 * 1024;
/// Between two looks at a file that is being followed.
const FOLLOW_POLL: Duration = Duration::from_millis(200);
/// Runs of a container whose files are looked at.
const RUNS_MAX: usize = 1000;

/// What to show of a log. Source: the API's `PodLogOptions`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LogOptions {
    follow: bool,
    previous: bool,
    timestamps: bool,
    tail_lines: Option<u64>,
    limit_bytes: Option<u64>,
    since: Option<Since>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Since {
    Ago(SignedDuration),
    At(Timestamp),
}

impl LogOptions {
    /// Reads the query of a request; the error says which option is wrong. Unknown ones are skipped, as kubelet does.
    pub(super) fn parse(query: &str) -> Result<Self, String> {
        let mut options = Self::default();
        for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            let wrong = || format!("{key}={value} is not valid");
            let flag =
                || value.parse::<bool>().or_else(|_| if value == "1" { Ok(true) } else { Err(wrong()) });
            let number = || value.parse::<u64>().map_err(|_| wrong());
            match key {
                "follow" => options.follow = flag()?,
                "previous" => options.previous = flag()?,
                "timestamps" => options.timestamps = flag()?,
                "tailLines" => options.tail_lines = Some(number()?),
                "limitBytes" => options.limit_bytes = Some(number()?).filter(|n| *n > 0),
                "sinceSeconds" => {
                    let seconds = i64::try_from(number()?).map_err(|_| wrong())?;
                    options.since = Some(Since::Ago(SignedDuration::from_secs(seconds)));
                }
                "sinceTime" => {
                    let text = value.replace("%3A", ":").replace("%2B", "+");
                    options.since = Some(Since::At(text.parse().map_err(|_| wrong())?));
                }
                _ => {}
            }
        }
        Ok(options)
    }
}

/// Opens the log of a container; the error is a status and a text.
pub(super) async fn open(
    context: &Context,
    (namespace, name, container): (&str, &str, &str),
    options: LogOptions,
) -> Result<LogReader, (StatusCode, String)> {
    let pod = context
        .pods
        .get(Some(namespace), name)
        .ok_or_else(|| (StatusCode::NOT_FOUND, format!("pod {namespace}/{name} is not on this node")))?;
    if !has_container(&pod, container) {
        return Err((StatusCode::BAD_REQUEST, format!("container {container} is not valid for pod {name}")));
    }
    let runs = runs(&log_dir(context, &pod).join(container));
    let path = match (runs.as_slice(), options.previous) {
        ([newest, ..], false) => newest.clone(),
        ([_, previous, ..], true) => previous.clone(),
        (_, true) => {
            let text = format!("previous terminated container {container:?} in pod {name:?} not found");
            return Err((StatusCode::BAD_REQUEST, text));
        }
        ([], false) => {
            let text = format!("container {container:?} in pod {name:?} is waiting to start");
            return Err((StatusCode::BAD_REQUEST, text));
        }
    };
    let (_, _, uid) = identity(&pod);
    let since = match options.since {
        Some(Since::Ago(ago)) => context.clock.timestamp().checked_sub(ago).ok(),
        Some(Since::At(at)) => Some(at),
        None => None,
    };
    let failed = |e: io::Error| (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot read the log: {e}"));
    let mut file = File::open(&path).await.map_err(failed)?;
    if let Some(lines) = options.tail_lines {
        let start = tail_start(&mut file, lines).await.map_err(failed)?;
        file.seek(SeekFrom::Start(start)).await.map_err(failed)?;
    }
    Ok(LogReader {
        decoder: LineDecoder::new(options.timestamps, since),
        left: options.limit_bytes.unwrap_or(u64::MAX),
        follow: (options.follow && !options.previous).then(|| Followed {
            cri: context.cri.clone(),
            uid: uid.to_owned(),
            container: container.to_owned(),
            ended: false,
        }),
        file,
        path,
    })
}

fn has_container(pod: &Pod, name: &str) -> bool {
    let all = pod.spec.iter().flat_map(|s| init_containers(s).iter().chain(&s.containers));
    all.into_iter().any(|c| c.name == name)
}

/// The log files of a container's runs, newest first.
fn runs(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().take(RUNS_MAX);
    let attempt = |path: &Path| {
        let is_log = path.extension().is_some_and(|e| e == "log");
        path.file_stem()?.to_str()?.parse::<u32>().ok().filter(|_| is_log)
    };
    let mut runs: Vec<_> = entries.filter_map(|e| Some((attempt(&e.path())?, e.path()))).collect();
    runs.sort_by_key(|(attempt, _)| std::cmp::Reverse(*attempt));
    runs.into_iter().map(|(_, path)| path).collect()
}

/// Where the last `lines` lines of a file start.
async fn tail_start(file: &mut File, lines: u64) -> io::Result<u64> {
    let length = file.metadata().await?.len();
    let mut position = length;
    let mut found = 0;
    let mut piece = vec![0; PIECE_BYTES];
    if lines == 0 {
        return Ok(length);
    }
    while position > 0 {
        let start = position.saturating_sub(PIECE_BYTES as u64);
        let size = usize::try_from(position - start).unwrap_or(PIECE_BYTES);
        file.seek(SeekFrom::Start(start)).await?;
        file.read_exact(&mut piece[..size]).await?;
        for (at, _) in piece[..size].iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            let end = start + at as u64 + 1;
            // The newline at the very end closes the last line; the ones before it open the lines after them.
            if end == length {
                continue;
            }
            found += 1;
            if found == lines {
                return Ok(end);
            }
        }
        position = start;
    }
    Ok(0)
}

struct Followed {
    cri: Cri,
    uid: String,
    container: String,
    ended: bool,
}

impl Followed {
    /// Whether the container whose log is followed still runs.
    async fn is_running(&self) -> bool {
        let Ok(containers) = self.cri.containers(Some(&self.uid)).await else { return false };
        containers.iter().any(|c| {
            let named = c.labels.get(label::CONTAINER_NAME) == Some(&self.container);
            named && c.state == ContainerState::ContainerRunning as i32
        })
    }
}

/// A log being read.
pub(super) struct LogReader {
    file: File,
    path: PathBuf,
    decoder: LineDecoder,
    left: u64,
    follow: Option<Followed>,
}

impl LogReader {
    /// The log in pieces. Nothing is read ahead of what the client takes.
    pub(super) fn into_stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send {
        futures::stream::try_unfold(self, |mut reader| async move {
            Ok(reader.next().await?.map(|piece| (piece, reader)))
        })
    }

    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        let mut piece = vec![0; PIECE_BYTES];
        while self.left > 0 {
            let read = self.file.read(&mut piece).await?;
            if read == 0 {
                if !self.wait_for_more().await? {
                    return Ok(None);
                }
                continue;
            }
            let mut output = self.decoder.decode(&piece[..read]);
            output.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
            if !output.is_empty() {
                self.left -= output.len() as u64;
                return Ok(Some(Bytes::from(output)));
            }
        }
        Ok(None)
    }

    /// At the end of the file: whether to go on reading.
    async fn wait_for_more(&mut self) -> io::Result<bool> {
        let Some(followed) = &mut self.follow else { return Ok(false) };
        // What is written between the container's end and this look is read in one more round.
        if followed.ended {
            return Ok(false);
        }
        if let Some(fresh) = rotated(&self.file, &self.path).await? {
            self.file = fresh;
            return Ok(true);
        }
        tokio::time::sleep(FOLLOW_POLL).await;
        followed.ended = !followed.is_running().await;
        Ok(true)
    }
}

/// The file that is now at `path`, if it is another one than `file`.
async fn rotated(file: &File, path: &Path) -> io::Result<Option<File>> {
    let Ok(there) = tokio::fs::metadata(path).await else { return Ok(None) };
    let open = file.metadata().await?;
    if (there.dev(), there.ino()) == (open.dev(), open.ino()) {
        return Ok(None);
    }
    File::open(path).await.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_options(query: &str, expected: Result<LogOptions, &str>) {
        assert_eq!(LogOptions::parse(query), expected.map_err(str::to_owned));
    }

    #[test]
    fn options() {
        check_options("", Ok(LogOptions::default()));
        check_options(
            "follow=true&tailLines=5&previous=false&timestamps=1&limitBytes=0&unknown=x",
            Ok(LogOptions { follow: true, tail_lines: Some(5), timestamps: true, ..LogOptions::default() }),
        );
        let since = Some(Since::Ago(SignedDuration::from_secs(9)));
        check_options("sinceSeconds=9", Ok(LogOptions { since, ..LogOptions::default() }));
        let since = Some(Since::At("2026-01-01T00:00:01Z".parse().unwrap()));
        check_options(
            "sinceTime=2026-01-01T00%3A00%3A01Z",
            Ok(LogOptions { since, ..LogOptions::default() }),
        );
        check_options("tailLines=-1", Err("tailLines=-1 is not valid"));
        check_options("follow=maybe", Err("follow=maybe is not valid"));
        check_options("sinceTime=yesterday", Err("sinceTime=yesterday is not valid"));
    }

    async fn tail(text: &str, lines: u64) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        std::fs::write(&path, text).unwrap();
        let start = tail_start(&mut File::open(&path).await.unwrap(), lines).await.unwrap();
        text[usize::try_from(start).unwrap()..].to_owned()
    }

    #[tokio::test]
    async fn the_last_lines_are_found_across_pieces() {
        assert_eq!(tail("", 3).await, "");
        assert_eq!(tail("a\nb\nc\n", 0).await, "");
        assert_eq!(tail("a\nb\nc\n", 1).await, "c\n");
        assert_eq!(tail("a\nb\nc", 2).await, "b\nc");
        assert_eq!(tail("a\nb\nc\n", 3).await, "a\nb\nc\n");
        assert_eq!(tail("a\nb\nc\n", 99).await, "a\nb\nc\n");
        let long = format!("x\n{}\n{}\n", "y".repeat(2 * PIECE_BYTES), "z".repeat(PIECE_BYTES - 1));
        assert_eq!(tail(&long, 1).await.len(), PIECE_BYTES);
        assert_eq!(tail(&long, 2).await.len(), 3 * PIECE_BYTES + 1);
    }

    #[test]
    fn runs_are_listed_newest_first() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["0.log", "10.log", "9.log", "9.old", "x.log"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let names: Vec<_> = runs(dir.path()).iter().map(|p| p.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["10.log", "9.log", "0.log"]);
        assert!(runs(Path::new("/no/such/dir")).is_empty());
    }
}
