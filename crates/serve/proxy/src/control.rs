//! Connections to the control plane: TLS against a root file, a token on every request.

use crate::error::ControlError;
use crate::settings::{Endpoint, Settings};
use ambit_trust::tls;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;

/// Resolving, connecting and the TLS handshake together.
pub(crate) const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// Silence after which the connection is tested, and the time the test may take.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));
/// Port when the address has none.
const DEFAULT_PORT: u16 = ambit_names::port::CONTROL_PLANE;

/// Host and port of an address; a missing scheme means https.
fn parse_address(address: &str) -> Result<(String, u16), ControlError> {
    let fail = || ControlError::Address(address.to_owned());
    let with_scheme = if address.contains("://") { address.to_owned() } else { format!("https://{address}") };
    let uri: http::Uri = with_scheme.parse().map_err(|_| fail())?;
    if uri.scheme_str() != Some("https") {
        return Err(fail());
    }
    let host = uri.host().ok_or_else(fail)?.trim_matches(['[', ']']).to_owned();
    Ok((host, uri.port_u16().unwrap_or(DEFAULT_PORT)))
}

fn server_name(host: &str) -> Result<ServerName<'static>, ControlError> {
    ServerName::try_from(host.to_owned()).map_err(|_| ControlError::Address(host.to_owned()))
}

/// Opens a connection. The root file is read anew, so that a rotated root is honoured.
pub(crate) async fn connect(endpoint: &Endpoint) -> Result<Channel, ControlError> {
    let (host, port) = parse_address(&endpoint.address)?;
    let roots = tokio::fs::read(&endpoint.root_pem)
        .await
        .map_err(|source| ControlError::File { path: endpoint.root_pem.clone(), source })?;
    let alternative = endpoint.alternative_name.as_deref().map(server_name).transpose()?;
    let connector = TlsConnector::from(Arc::new(tls::control_plane_config(&roots, alternative)?));
    let name = server_name(&host)?;
    let dial_host = host.clone();
    let dial = tower::service_fn(move |_: http::Uri| {
        let (connector, name, host) = (connector.clone(), name.clone(), dial_host.clone());
        async move {
            let tcp = TcpStream::connect((host.as_str(), port)).await?;
            tcp.set_nodelay(true)?;
            Ok::<_, std::io::Error>(TokioIo::new(connector.connect(name, tcp).await?))
        }
    });
    // The scheme that the library sees is plain because TLS is ours; `origin` is what goes on the wire.
    let fail = |detail: String| ControlError::Connect { address: endpoint.address.clone(), detail };
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let origin = format!("https://{host}:{port}").parse().map_err(|_| fail("not a URI".into()))?;
    let transport =
        Channel::builder(format!("http://{host}:{port}").parse().map_err(|_| fail("not a URI".into()))?)
            .origin(origin)
            .http2_keep_alive_interval(KEEPALIVE.0)
            .keep_alive_timeout(KEEPALIVE.1)
            .keep_alive_while_idle(true);
    match tokio::time::timeout(CONNECT_DEADLINE, transport.connect_with_connector(dial)).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(fail(causes(&error))),
        Err(_) => Err(fail(format!("no answer within {} s", CONNECT_DEADLINE.as_secs()))),
    }
}

/// An error with all its causes.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// Adds the token, which is read anew, and the cluster id.
pub(crate) async fn authenticate<T>(
    settings: &Settings,
    request: &mut tonic::Request<T>,
) -> Result<(), ControlError> {
    let token = tokio::fs::read_to_string(&settings.token)
        .await
        .map_err(|source| ControlError::File { path: settings.token.clone(), source })?;
    let header = |text: String| -> Result<MetadataValue<Ascii>, ControlError> {
        text.parse().map_err(|_| ControlError::Token(settings.token.clone()))
    };
    request.metadata_mut().insert("authorization", header(format!("Bearer {}", token.trim()))?);
    request.metadata_mut().insert("clusterid", header(settings.cluster_id.clone())?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(address: &str, expected: Option<(&str, u16)>) {
        let read = parse_address(address).ok();
        assert_eq!(read.as_ref().map(|(host, port)| (host.as_str(), *port)), expected);
    }

    #[test]
    fn addresses_of_the_control_plane() {
        check("https://istiod.istio-system.svc:15012", Some(("istiod.istio-system.svc", 15012)));
        check("127.0.0.1:15012", Some(("127.0.0.1", 15012)));
        check("https://[::1]:15012", Some(("::1", 15012)));
        check("https://istiod", Some(("istiod", 15012)));
        check("http://istiod:15012", None);
        check("", None);
        check("https://", None);
    }
}
