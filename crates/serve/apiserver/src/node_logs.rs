//! Logs of containers, fetched from the server of the node that runs the pod.

use crate::address::Query;
use crate::answer::{Body, BodyError};
use crate::cluster::Cluster;
use crate::request::{Call, Target, text};
use crate::status::{Answer, Failure};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

/// How long reaching the node's server may take, its answer's head included.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// Port of a node's server when the node does not say. Source: ports.KubeletPort.
const NODE_PORT: u16 = 10250;
/// Options that are handed on.
const OPTIONS: [&str; 8] =
    ["follow", "tailLines", "previous", "timestamps", "sinceSeconds", "sinceTime", "limitBytes", "stream"];

/// Answers a GET of `pods/NAME/log`.
pub(crate) async fn logs(cluster: &Cluster, call: &Call, target: &Target) -> Answer<Response<Body>> {
    let pod = cluster.stored(target)?.value.value();
    let container = container(&pod, &call.query, &target.name)?;
    let node = text(&pod, "/spec/nodeName");
    if node.is_empty() {
        return Err(Failure::bad_request(format!(
            "container {container:?} in pod {:?} is waiting to start: no host assigned",
            target.name
        )));
    }
    let node = cluster
        .object("nodes", "", node)
        .ok_or_else(|| Failure::not_found(&cluster.built_in("", "v1", "Node"), node))?
        .value();
    let (host, port) = endpoint(&node).ok_or_else(|| {
        Failure::unavailable(format!("node {:?} reports no InternalIP", text(&node, "/metadata/name")))
    })?;
    let path =
        format!("/containerLogs/{}/{}/{container}{}", target.namespace, target.name, options(&call.query));
    let fetched = tokio::time::timeout(CONNECT_WAIT, fetch(cluster, host, port, &path)).await;
    let response = match fetched {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => {
            tracing::warn!(%host, port, %error, "node could not be asked for logs");
            return Err(Failure::internal(format!("Get \"https://{host}:{port}{path}\": {error}")));
        }
        Err(_) => {
            return Err(Failure::internal(format!("Get \"https://{host}:{port}{path}\": no answer in time")));
        }
    };
    relay(response).await
}

/// Hands a log on as it comes; an error's text becomes a Status.
async fn relay(response: Response<hyper::body::Incoming>) -> Answer<Response<Body>> {
    let code = response.status();
    if code == StatusCode::OK {
        let body = response.into_body().map_err(|e| BodyError::from(e.to_string())).boxed_unsync();
        let mut response = Response::new(body);
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        return Ok(response);
    }
    let body = http_body_util::Limited::new(response.into_body(), 64 << 10).collect().await;
    let said = body.map(|b| String::from_utf8_lossy(&b.to_bytes()).trim().to_owned()).unwrap_or_default();
    match code {
        StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST => Err(Failure::bad_request(said)),
        code => Err(Failure::internal(format!("the node answered {code}: {said}"))),
    }
}

/// The container whose log is meant: the only one, the annotated one, or the one named.
fn container(pod: &Value, query: &Query, name: &str) -> Answer<String> {
    let lists =
        [&pod["spec"]["containers"], &pod["spec"]["initContainers"], &pod["spec"]["ephemeralContainers"]];
    let names = |list: &&Value| -> Vec<String> {
        list.as_array().into_iter().flatten().map(|c| text(c, "/name").to_owned()).collect()
    };
    let all: Vec<String> = lists.iter().flat_map(names).collect();
    match query.value("container").filter(|c| !c.is_empty()) {
        Some(wanted) if all.iter().any(|c| c == wanted) => Ok(wanted.to_owned()),
        Some(wanted) => Err(Failure::bad_request(format!("container {wanted} is not valid for pod {name}"))),
        None => match &names(&lists[0])[..] {
            [one] => Ok(one.clone()),
            many => Err(Failure::bad_request(format!(
                "a container name must be specified for pod {name}, choose one of: [{}]",
                many.join(" ")
            ))),
        },
    }
}

fn endpoint(node: &Value) -> Option<(IpAddr, u16)> {
    let addresses = node["status"]["addresses"].as_array()?;
    let host = addresses.iter().find(|a| a["type"] == "InternalIP").and_then(|a| a["address"].as_str())?;
    let port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64();
    let port = port.and_then(|port| port.try_into().ok()).filter(|port| *port > 0).unwrap_or(NODE_PORT);
    Some((host.parse().ok()?, port))
}

/// Only options with values that need no quoting are handed on.
fn options(query: &Query) -> String {
    let plain = |v: &str| v.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, ':' | '.' | '-'));
    let given = OPTIONS.iter().filter_map(|name| Some((name, query.value(name)?)));
    let pairs: Vec<String> = given.filter(|(_, v)| plain(v)).map(|(n, v)| format!("{n}={v}")).collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

async fn fetch(
    cluster: &Cluster,
    host: IpAddr,
    port: u16,
    path: &str,
) -> Result<Response<hyper::body::Incoming>, BodyError> {
    let stream = TcpStream::connect((host, port)).await?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(client_config(cluster)?));
    let stream = connector.connect(ServerName::IpAddress(host.into()), stream).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // Ends with the response: the body below is what keeps the connection busy.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection to a node ended");
        }
    });
    let host = if host.is_ipv6() { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let request = Request::get(path).header(header::HOST, host).body(Empty::<Bytes>::new())?;
    Ok(sender.send_request(request).await?)
}

fn client_config(cluster: &Cluster) -> Result<rustls::ClientConfig, BodyError> {
    let mut roots = rustls::RootCertStore::empty();
    for cert in CertificateDer::pem_slice_iter(cluster.options.ca_pem.as_bytes()) {
        roots.add(cert?)?;
    }
    let credentials = &cluster.options.node_client;
    let chain =
        CertificateDer::pem_slice_iter(credentials.cert_pem.as_bytes()).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(credentials.key_pem.as_bytes())?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    Ok(rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(query: &str, expected: Result<&str, &str>) {
        let pod = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}});
        match (container(&pod, &Query::parse(query), "p"), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(failure), Err(expected)) => {
                let message = failure.status()["message"].to_string();
                assert!(message.contains(expected), "{message}");
            }
            (found, expected) => panic!("{found:?} is not {expected:?}"),
        }
    }

    #[test]
    fn the_container_is_the_one_that_is_named() {
        check("container=b", Ok("b"));
        check("container=i", Ok("i"));
        check("container=x", Err("container x is not valid for pod p"));
        check("", Err("choose one of: [a b]"));
    }

    #[test]
    fn options_are_handed_on_unless_they_could_mean_something_else() {
        let query = Query::parse("follow=true&tailLines=5&container=a&sinceSeconds=1%262&limitBytes=9");
        assert_eq!(options(&query), "?follow=true&tailLines=5&limitBytes=9");
    }
}
