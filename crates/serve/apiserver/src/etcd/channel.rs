//! The connection to etcd.

use super::{EtcdError, EtcdSettings, EtcdTls};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

/// How long one member may take to accept a connection.
const CONNECT_WAIT: Duration = Duration::from_secs(3);
/// Interval and deadline of HTTP/2 pings: a member that has vanished is noticed within their sum.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(5));

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A connection that is made when it is needed, to the first member that accepts it, beginning after the last one tried.
pub(super) async fn channel(settings: &EtcdSettings) -> Result<Channel, EtcdError> {
    let members: Vec<(String, u16)> = settings.members.iter().map(|m| parse(m)).collect::<Result<_, _>>()?;
    if members.is_empty() {
        return Err(EtcdError::Member { member: String::new() });
    }
    let tls = match &settings.tls {
        Some(tls) => Some(TlsConnector::from(Arc::new(client_config(tls).await?))),
        None => None,
    };
    let shared = Arc::new((members, tls, AtomicUsize::new(0)));
    let dial = tower::service_fn(move |_: http::Uri| {
        let shared = shared.clone();
        async move {
            let (members, tls, turn) = &*shared;
            let first = turn.fetch_add(1, Ordering::Relaxed);
            let mut failures = Vec::new();
            for i in 0..members.len() {
                let (host, port) = &members[(first + i) % members.len()];
                match tokio::time::timeout(CONNECT_WAIT, open(host, *port, tls.as_ref())).await {
                    Ok(Ok(stream)) => return Ok(TokioIo::new(stream)),
                    Ok(Err(error)) => failures.push(format!("{host}:{port}: {error}")),
                    Err(_) => failures.push(format!("{host}:{port}: no answer within {CONNECT_WAIT:?}")),
                }
            }
            Err(std::io::Error::other(failures.join("; ")))
        }
    });
    // The address only fills the requests' authority.
    let endpoint = Endpoint::from_static("http://etcd")
        .http2_keep_alive_interval(KEEPALIVE.0)
        .keep_alive_timeout(KEEPALIVE.1)
        .keep_alive_while_idle(true);
    Ok(endpoint.connect_with_connector_lazy(dial))
}

async fn open(host: &str, port: u16, tls: Option<&TlsConnector>) -> std::io::Result<Box<dyn Stream>> {
    let tcp = TcpStream::connect((host, port)).await?;
    tcp.set_nodelay(true)?;
    let Some(tls) = tls else { return Ok(Box::new(tcp)) };
    let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
    Ok(Box::new(tls.connect(name, tcp).await?))
}

/// Splits `HOST:PORT`; IPv6 addresses are in brackets.
fn parse(member: &str) -> Result<(String, u16), EtcdError> {
    let fault = || EtcdError::Member { member: member.to_owned() };
    let (host, port) = member.rsplit_once(':').ok_or_else(fault)?;
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    match port.parse() {
        Ok(port) if !bare.is_empty() && (bare == host) != bare.contains(':') => Ok((bare.to_owned(), port)),
        _ => Err(fault()),
    }
}

async fn client_config(tls: &EtcdTls) -> Result<rustls::ClientConfig, EtcdError> {
    let fault = |e: &dyn std::fmt::Display| EtcdError::Tls { detail: e.to_string() };
    let mut roots = rustls::RootCertStore::empty();
    for root in certificates(&tls.authorities).await? {
        roots.add(root).map_err(|e| fault(&e))?;
    }
    let versions = rustls::ClientConfig::builder_with_provider(ambit_trust::provider::control())
        .with_safe_default_protocol_versions()
        .map_err(|e| fault(&e))?
        .with_root_certificates(roots);
    let mut config = match &tls.client {
        None => versions.with_no_client_auth(),
        Some((chain, key)) => {
            let pem = read(key).await?;
            let key =
                PrivateKeyDer::from_pem_slice(&pem).map_err(|e| fault(&format!("{}: {e}", key.display())))?;
            versions.with_client_auth_cert(certificates(chain).await?, key).map_err(|e| fault(&e))?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

async fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, EtcdError> {
    let pem = read(path).await?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(EtcdError::Tls { detail: format!("{} holds no certificate", path.display()) }),
        Err(e) => Err(EtcdError::Tls { detail: format!("{}: {e}", path.display()) }),
    }
}

async fn read(path: &Path) -> Result<Vec<u8>, EtcdError> {
    tokio::fs::read(path).await.map_err(|source| EtcdError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(member: &str, expected: Option<(&str, u16)>) {
        let found = parse(member).ok();
        assert_eq!(found.as_ref().map(|(host, port)| (host.as_str(), *port)), expected, "{member}");
    }

    #[test]
    fn members_are_hosts_with_ports() {
        check("127.0.0.1:2379", Some(("127.0.0.1", 2379)));
        check("etcd-0.etcd:2379", Some(("etcd-0.etcd", 2379)));
        check("[::1]:2379", Some(("::1", 2379)));
        check("::1:2379", None);
        check("[etcd]:2379", None);
        check("etcd", None);
        check(":2379", None);
        check("etcd:port", None);
    }
}
