//! The root of the mesh, kept in a Secret.

use crate::error::Error;
use ambit_api::core::v1::Secret;
use ambit_api::k8s_openapi::ByteString;
use ambit_runtime::{Backoff, Clock, Shutdown};
use ambit_trust::authority::{Authority, AuthorityError};
use kube::api::{Api, PostParams};
use kube::core::ObjectMeta;
use std::collections::BTreeMap;
use std::time::Duration;
use tracing::{info, warn};

/// Name of the Secret, as the field has it.
pub(crate) const SECRET: &str = "istio-ca-secret";
const CERT_KEY: &str = "ca-cert.pem";
const KEY_KEY: &str = "ca-key.pem";
/// Type of the Secret, as the field has it.
const SECRET_TYPE: &str = "istio.io/ca-root";
/// Time for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Delays between attempts while the API server or the namespace is not there.
const DELAYS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Takes the root from the cluster, or makes one and keeps it there. Waits for the API server and the namespace;
/// none is returned when `shutdown` comes first.
pub(crate) async fn obtain(
    client: &kube::Client,
    namespace: &str,
    trust_domain: &str,
    shutdown: &Shutdown,
) -> Result<Option<Authority>, Error> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let mut delays = Backoff::new(DELAYS.0, DELAYS.1);
    loop {
        let attempt = tokio::time::timeout(REQUEST_TIMEOUT, read_or_create(&secrets, trust_domain));
        let why = match attempt.await {
            Ok(Ok(authority)) => return Ok(Some(authority)),
            Ok(Err(Failure::Unusable(source))) => {
                return Err(Error::Root { namespace: namespace.to_owned(), name: SECRET, source });
            }
            Ok(Err(Failure::Request(error))) => error.to_string(),
            Err(_) => "no answer in time".to_owned(),
        };
        warn!(namespace, secret = SECRET, why, "cannot read or keep the root yet, trying again");
        tokio::select! {
            () = tokio::time::sleep(delays.next_delay()) => {}
            () = shutdown.cancelled() => return Ok(None),
        }
    }
}

enum Failure {
    /// Worth another attempt.
    Request(kube::Error),
    /// What is there is wrong.
    Unusable(AuthorityError),
}

async fn read_or_create(secrets: &Api<Secret>, trust_domain: &str) -> Result<Authority, Failure> {
    if let Some(secret) = secrets.get_opt(SECRET).await.map_err(Failure::Request)? {
        return read(&secret).map_err(Failure::Unusable);
    }
    let authority = Authority::self_signed(trust_domain, Clock.wall()).map_err(Failure::Unusable)?;
    // Of two that make one at the same time the second fails here, and reads the first one's on its next attempt.
    secrets.create(&PostParams::default(), &secret(&authority)).await.map_err(Failure::Request)?;
    info!(secret = SECRET, "made a new root for the mesh");
    Ok(authority)
}

fn read(secret: &Secret) -> Result<Authority, AuthorityError> {
    let text = |key: &str| {
        let value = secret.data.as_ref().and_then(|data| data.get(key));
        let value = value.ok_or_else(|| AuthorityError::Stored(format!("it has no {key}")))?;
        std::str::from_utf8(&value.0).map_err(|_| AuthorityError::Stored(format!("its {key} is not text")))
    };
    Authority::from_pem(text(CERT_KEY)?, text(KEY_KEY)?)
}

fn secret(authority: &Authority) -> Secret {
    let keyed = authority.to_keyed();
    Secret {
        metadata: ObjectMeta { name: Some(SECRET.to_owned()), ..ObjectMeta::default() },
        type_: Some(SECRET_TYPE.to_owned()),
        data: Some(BTreeMap::from([
            (CERT_KEY.to_owned(), ByteString(keyed.cert_pem.into_bytes())),
            (KEY_KEY.to_owned(), ByteString(keyed.key_pem.into_bytes())),
        ])),
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_can_be_read_and_what_cannot_be_read_is_told() {
        let authority = Authority::self_signed("cluster.local", Clock.wall()).unwrap();
        let mut kept = secret(&authority);
        assert_eq!(read(&kept).unwrap().root_pem(), authority.root_pem());
        let data = kept.data.as_mut().unwrap();
        data.insert(KEY_KEY.to_owned(), ByteString(vec![0xff]));
        let text = |secret: &Secret| read(secret).map(|_| ()).unwrap_err().to_string();
        assert!(text(&kept).ends_with("its ca-key.pem is not text"));
        kept.data = None;
        assert!(text(&kept).ends_with("it has no ca-cert.pem"));
    }
}
