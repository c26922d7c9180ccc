//! The access log as the test process sees it.

use std::io::Write;
use std::sync::{LazyLock, Mutex};

static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());
static INSTALLED: LazyLock<()> = LazyLock::new(|| {
    let filter = std::env::var("RUST_LOG").unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt().json().flatten_event(true).with_env_filter(filter).with_writer(|| Sink).init();
});

struct Sink;

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if std::env::var_os("RUST_LOG").is_some() {
            std::io::stderr().write_all(bytes)?;
        }
        LINES.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Starts to record.
pub(crate) fn record() {
    *INSTALLED;
}

/// Recorded lines of the access log with this value of this field.
pub(crate) fn access(field: &str, value: &str) -> Vec<serde_json::Value> {
    let text = String::from_utf8(LINES.lock().unwrap().clone()).unwrap();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    lines.filter(|line| line["target"] == "access" && line[field] == value).collect()
}
