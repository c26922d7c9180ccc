//! One request from its first byte to its answer: body, identity, deadline. TLS connections and in-process clients
//! both come through here.

use crate::access;
use crate::address::Query;
use crate::answer::{self, Body};
use crate::cluster::Cluster;
use crate::impersonate;
use crate::request::{Call, User};
use crate::router;
use crate::status::{Answer, Failure};
use ambit_runtime::Shutdown;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a request's body at most. Source: apiserver MaxRequestBodyBytes.
const BODY_BYTES_MAX: usize = 3 << 20;
/// A request that is no watch or log is answered, or given up, within this time. Source: apiserver RequestTimeout.
const REQUEST_WAIT: Duration = Duration::from_secs(60);
/// Requests answered at once at most, streams aside; more are told to come back.
const IN_FLIGHT_MAX: i64 = 800;

/// Who is on the other end of a connection.
#[derive(Debug, Clone)]
pub(crate) enum Peer {
    /// A client in this process, which speaks as this user.
    InProcess(User),
    /// A TLS client, with the user of its certificate if it showed one.
    Tls(Option<User>),
}

/// Answers requests. Clones share one cluster.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) stopping: Shutdown,
}

impl Service {
    /// Answers one request; every failure becomes a response.
    pub(crate) async fn serve<B>(&self, peer: Peer, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<answer::BodyError>,
    {
        let metrics = &self.cluster.metrics;
        let method = request.method().clone();
        let _gauge = InFlight::enter(metrics);
        let outcome = match metrics.in_flight.get() > IN_FLIGHT_MAX {
            true => Err(Failure::too_many_requests()),
            false => self.answer(peer, request).await,
        };
        let mut response = outcome.unwrap_or_else(|failure| answer::failure(&failure));
        metrics.count(&method, response.status().as_u16());
        if method == Method::HEAD {
            *response.body_mut() = answer::full(Bytes::new());
        }
        let id = uuid::Uuid::new_v4().to_string();
        if let Ok(id) = HeaderValue::from_str(&id) {
            response.headers_mut().insert("audit-id", id);
        }
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        response
    }

    async fn answer<B>(&self, peer: Peer, request: Request<B>) -> Answer<Response<Body>>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<answer::BodyError>,
    {
        let (head, body) = request.into_parts();
        let user = impersonate::apply(&self.cluster, self.user(peer, &head.headers)?, &head.headers)?;
        let work = async {
            let call = Call {
                user,
                method: head.method,
                path: head.uri.path().to_owned(),
                query: Query::parse(head.uri.query().unwrap_or_default()),
                headers: head.headers,
                body: read_body(body).await?,
            };
            router::answer(&self.cluster, &call, &self.stopping).await
        };
        // Streams are answers whose body goes on; the deadline is on their head only.
        tokio::time::timeout(REQUEST_WAIT, work).await.unwrap_or_else(|_| Err(Failure::timeout()))
    }

    fn user(&self, peer: Peer, headers: &HeaderMap) -> Answer<User> {
        let certificate = match peer {
            Peer::InProcess(user) => return Ok(user),
            Peer::Tls(certificate) => certificate,
        };
        if let Some(user) = certificate {
            return Ok(user);
        }
        let Some(given) = headers.get(header::AUTHORIZATION) else { return Ok(User::anonymous()) };
        let token = given.to_str().ok().and_then(|text| {
            let (scheme, token) = text.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        let token = token.ok_or_else(Failure::unauthorized)?;
        let audience = [self.cluster.tokens.issuer().to_owned()];
        let (user, _) = access::token_user(&self.cluster, token, &audience).map_err(|error| {
            tracing::debug!(error, "refused bearer token");
            Failure::unauthorized()
        })?;
        Ok(user)
    }
}

async fn read_body<B>(body: B) -> Answer<Bytes>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<answer::BodyError>,
{
    match Limited::new(body, BODY_BYTES_MAX).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Failure::too_large(BODY_BYTES_MAX)),
        Err(error) => Err(Failure::bad_request(format!("the body could not be read: {error}"))),
    }
}

/// Counts a request for as long as it lives.
struct InFlight<'a>(&'a crate::metrics::Metrics);

impl<'a> InFlight<'a> {
    fn enter(metrics: &'a crate::metrics::Metrics) -> Self {
        metrics.in_flight.inc();
        Self(metrics)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.dec();
    }
}
