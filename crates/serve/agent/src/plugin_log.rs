//! The socket to which plugins send what they log: a list of texts, each a JSON object with `level`, `msg` and labels.

use crate::events::read;
use crate::http::text;
use ambit_cni_conf::event::LOG_PATH;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use serde_json::{Map, Value};

/// Lines of one request that are written. A plugin has a handful to say.
const LINES_MAX: usize = 100;

/// Writes the lines of one request.
pub(crate) async fn handle(request: Request<Incoming>) -> Response<Full<Bytes>> {
    if request.uri().path() != LOG_PATH {
        return text(StatusCode::NOT_FOUND, "there is only /log\n");
    }
    match read::<Vec<String>>(request).await {
        Ok(lines) => {
            lines.iter().take(LINES_MAX).for_each(|line| write(line));
            text(StatusCode::OK, "")
        }
        Err(response) => response,
    }
}

fn write(line: &str) {
    let Ok(mut fields) = serde_json::from_str::<Map<String, Value>>(line) else {
        tracing::warn!(target: "plugin", line, "the plugin sent a line that is no object");
        return;
    };
    let mut take = |key: &str| match fields.remove(key) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    };
    let (level, message) = (take("level"), take("msg"));
    // The time of arrival is a moment later, and in the same order as everything else in this log.
    take("time");
    let labels = Value::Object(fields);
    match level.as_str() {
        "error" => tracing::error!(target: "plugin", %labels, "{message}"),
        "warn" => tracing::warn!(target: "plugin", %labels, "{message}"),
        "debug" => tracing::debug!(target: "plugin", %labels, "{message}"),
        _ => tracing::info!(target: "plugin", %labels, "{message}"),
    }
}
