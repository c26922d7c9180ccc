//! Clients whose connections notice a server that has vanished.

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ConfigExt as _};
use kube::{Client, Config};
use std::time::Duration;
use tower::ServiceBuilder;
use tower::retry::RetryLayer;

/// How a connection finds out that there is nobody at its other end any more: a machine that lost its power, or a path that
/// drops packets, says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Liveness {
    /// Silence after which the other end is asked for a sign of life.
    pub idle: Duration,
    /// Time between questions.
    pub interval: Duration,
    /// Time without any sign of life, to questions or to data, after which the connection is given up.
    pub lost_after: Duration,
}

impl Default for Liveness {
    /// Given up within 30 s. Peers: client-go finds out within 45 s by HTTP/2 pings.
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { idle: seconds(10), interval: seconds(5), lost_after: seconds(30) }
    }
}

/// A client of a cluster. A watch through it ends with an error when the server vanishes.
///
/// # Errors
/// The configuration's certificates, keys or credentials cannot be used, or it wants a proxy.
pub fn connect(config: Config, liveness: Liveness) -> Result<Client, kube::Error> {
    if config.proxy_url.is_some() {
        // The liveness of a connection through a proxy is that of the proxy.
        return Client::try_from(config);
    }
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(config.connect_timeout);
    http.set_keepalive(Some(liveness.idle));
    http.set_keepalive_interval(Some(liveness.interval));
    // Counts from the last sign of life, for questions as for data, whatever the number of questions.
    http.set_tcp_user_timeout(Some(liveness.lost_after));
    let https = config.rustls_https_connector_with_connector(http)?;
    let client = hyper_util::client::legacy::Builder::new(TokioExecutor::new()).build::<_, Body>(https);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(tower::BoxError::from)
        .service(client);
    Ok(Client::new(service, config.default_namespace))
}
