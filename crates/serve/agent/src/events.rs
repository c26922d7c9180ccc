//! The socket to which plugins post the pods whose network was just made.

use crate::enroll::{Asker, Enroller};
use crate::error::with_causes;
use crate::http::{answer, text};
use crate::metrics::Metrics;
use ambit_cni_conf::Event;
use ambit_cni_conf::event::{ADD_PATH, BODY_BYTES_MAX, FOREIGN_ADD_PATH};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use std::time::Duration;

/// Time for a request's body.
const BODY_DEADLINE: Duration = Duration::from_secs(5);

/// Answers one request of a plugin.
pub(crate) async fn handle(
    request: Request<Incoming>,
    enroller: Enroller,
    metrics: Metrics,
) -> Response<Full<Bytes>> {
    let asker = match request.uri().path() {
        ADD_PATH if request.method() == Method::POST => Asker::Own,
        // The field's agent does not look at the method.
        FOREIGN_ADD_PATH => Asker::Foreign,
        ADD_PATH => return text(StatusCode::METHOD_NOT_ALLOWED, "use POST\n"),
        _ => return text(StatusCode::NOT_FOUND, "no such path\n"),
    };
    let response = match read_event(request).await {
        Ok(event) => add(event, asker, enroller).await,
        Err(response) => response,
    };
    metrics.count_request(response.status().as_u16());
    response
}

async fn read_event(request: Request<Incoming>) -> Result<Event, Response<Full<Bytes>>> {
    let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect();
    let bytes = match tokio::time::timeout(BODY_DEADLINE, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(e)) => {
            return Err(text(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot read the body: {e}\n")));
        }
        Err(_) => return Err(text(StatusCode::INTERNAL_SERVER_ERROR, "the body did not arrive in time\n")),
    };
    serde_json::from_slice(&bytes)
        .map_err(|e| text(StatusCode::BAD_REQUEST, format!("the body is not an event: {e}\n")))
}

async fn add(event: Event, asker: Asker, enroller: Enroller) -> Response<Full<Bytes>> {
    let pod = format!("{}/{}", event.pod_namespace, event.pod_name);
    match enroller.event(event, asker).await {
        Ok(decided) => {
            tracing::info!(%pod, captured = decided.captured, reason = %decided.reason, "answered the plugin");
            let body = serde_json::to_string(&decided).unwrap_or_default();
            answer(StatusCode::OK, "application/json", body)
        }
        Err(error) => {
            let error = with_causes(&error);
            tracing::warn!(%pod, %error, "could not enroll a starting pod, its runtime will try again");
            text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"))
        }
    }
}
