//! Log output: lines on a terminal or JSON, on stderr.

use tracing_subscriber::EnvFilter;

/// How log events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// One readable line per event.
    Text,
    /// One JSON object per event.
    Json,
}

/// The filter directives could not be read.
#[derive(Debug, thiserror::Error)]
#[error("log filter {filter:?} is not valid: use LEVEL or TARGET=LEVEL, comma-separated")]
pub struct FilterError {
    filter: String,
    #[source]
    source: tracing_subscriber::filter::ParseError,
}

/// Installs the process's log output on stderr. Call once, first.
///
/// # Errors
/// `filter` is not a list of `LEVEL` or `TARGET=LEVEL`.
pub fn init(filter: &str, format: LogFormat) -> Result<(), FilterError> {
    let parsed =
        EnvFilter::try_new(filter).map_err(|source| FilterError { filter: filter.to_owned(), source })?;
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let builder =
        tracing_subscriber::fmt().with_env_filter(parsed).with_writer(std::io::stderr).with_ansi(terminal);
    // A second call in one process (tests) keeps the first output.
    let _ = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    Ok(())
}
