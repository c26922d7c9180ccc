//! The proxy's own HTTP endpoints: admin, metrics, readiness.

use crate::error::Error;
use ambit_runtime::{Shutdown, endpoint};
use std::net::SocketAddr;
use tokio::net::TcpListener;

pub(crate) use ambit_runtime::endpoint::{Answer, Handler, text};

/// A bound endpoint.
pub(crate) struct Endpoint {
    listener: TcpListener,
    handler: Handler,
}

impl Endpoint {
    /// Binds an endpoint.
    pub(crate) async fn bind(
        what: &'static str,
        address: SocketAddr,
        handler: Handler,
    ) -> Result<Self, Error> {
        let listener =
            endpoint::listen(address).await.map_err(|source| Error::Listen { what, address, source })?;
        Ok(Self { listener, handler })
    }

    /// Serves until shutdown.
    pub(crate) async fn run(self, shutdown: Shutdown) {
        endpoint::serve(self.listener, self.handler, shutdown).await;
    }
}
