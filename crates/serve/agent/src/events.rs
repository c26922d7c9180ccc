//! The socket to which plugins post the pods whose network was just made.

use crate::enroll::{Asker, Enroller};
use crate::error::with_causes;
use crate::http::{answer, text};
use crate::metrics::Metrics;
use ambit_cni_conf::Event;
use ambit_cni_conf::event::{
    ADD_PATH, Ability, BODY_BYTES_MAX, CHECK_PATH, FOREIGN_ADD_PATH, GC_PATH, LiveSandboxes, STATUS_PATH,
    State,
};
use bytes::Bytes;
use futures::FutureExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Time for a request's body.
const BODY_DEADLINE: Duration = Duration::from_secs(5);
/// Largest list of live sandboxes: ids have 64 characters, and nodes some hundred sandboxes.
const GC_BYTES_MAX: usize = 1 << 20;

/// Answers one request of a plugin.
pub(crate) async fn handle(
    request: Request<Incoming>,
    enroller: Enroller,
    metrics: Metrics,
) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    let is_ours = [ADD_PATH, CHECK_PATH, STATUS_PATH, GC_PATH].contains(&path.as_str());
    if is_ours && request.method() != Method::POST {
        return text(StatusCode::METHOD_NOT_ALLOWED, "use POST\n");
    }
    let answered = match path.as_str() {
        ADD_PATH => read(request).await.map(|event| add(event, Asker::Own, enroller).boxed()),
        // The field's agent does not look at the method.
        FOREIGN_ADD_PATH => read(request).await.map(|event| add(event, Asker::Foreign, enroller).boxed()),
        CHECK_PATH => read(request).await.map(|event| check(event, enroller).boxed()),
        GC_PATH => read(request).await.map(|live| collect(live, enroller).boxed()),
        STATUS_PATH => return state(&metrics),
        _ => return text(StatusCode::NOT_FOUND, "no such path\n"),
    };
    let response = match answered {
        Ok(answer) => answer.await,
        Err(response) => response,
    };
    metrics.count_request(response.status().as_u16());
    response
}

/// Whether a pod could be enrolled now. Nobody is answered before the watches have synced, so that only the proxy can be
/// missing.
fn state(metrics: &Metrics) -> Response<Full<Bytes>> {
    let state = match metrics.proxies() {
        0 => State { ability: Ability::Cut, reason: "no node proxy is connected".to_owned() },
        connected => {
            State { ability: Ability::Able, reason: format!("{connected} node proxies are connected") }
        }
    };
    answer(StatusCode::OK, "application/json", serde_json::to_string(&state).unwrap_or_default())
}

async fn check(event: Event, enroller: Enroller) -> Response<Full<Bytes>> {
    let pod = format!("{}/{}", event.pod_namespace, event.pod_name);
    match enroller.check(event).await {
        Ok(()) => answer(StatusCode::OK, "application/json", "{}".to_owned()),
        Err(error) => {
            let error = with_causes(&error);
            tracing::warn!(%pod, %error, "a pod is not captured as it should be");
            text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"))
        }
    }
}

async fn collect(live: LiveSandboxes, enroller: Enroller) -> Response<Full<Bytes>> {
    match enroller.collect(live.container_ids.into_iter().collect()).await {
        Ok(()) => answer(StatusCode::OK, "application/json", "{}".to_owned()),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{}\n", with_causes(&error))),
    }
}

/// The body of a request, as JSON.
pub(crate) async fn read<T: DeserializeOwned>(
    request: Request<Incoming>,
) -> Result<T, Response<Full<Bytes>>> {
    let bytes_max = if request.uri().path() == GC_PATH { GC_BYTES_MAX } else { BODY_BYTES_MAX };
    let body = Limited::new(request.into_body(), bytes_max).collect();
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
