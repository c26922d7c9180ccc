//! The certificate service.
//!
//! The checks and their order are the field's (istiod's `CreateCertificate`), with two more: the trust domain of the
//! wanted identity, and the names inside the request.

use crate::authentication::{Authenticator, Caller};
use crate::metrics::Metrics;
use crate::pod_index::{PodIndex, account};
use ambit_names::spiffe::Identity;
use ambit_proto::ca::istio_certificate_service_server::IstioCertificateService;
use ambit_proto::ca::{IstioCertificateRequest, IstioCertificateResponse};
use ambit_runtime::Clock;
use ambit_trust::authority::{Authority, AuthorityError, CertificateRequest, Lifetimes};
use prost_types::value::Kind;
use std::sync::Arc;
use tonic::{Request, Response, Status};
use tracing::{debug, error, info, warn};

/// Issues certificates to workloads, and to node proxies for the workloads of their node.
pub(crate) struct CertificateService {
    pub(crate) authority: Arc<Authority>,
    pub(crate) authenticator: Authenticator,
    pub(crate) pods: PodIndex,
    pub(crate) trust_domain: String,
    pub(crate) trusted_node_accounts: Vec<String>,
    pub(crate) lifetimes: Lifetimes,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
}

#[tonic::async_trait]
impl IstioCertificateService for CertificateService {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        let answer = self.create(request).await;
        match &answer {
            Ok(_) => self.metrics.issued(),
            Err(_) => self.metrics.refused(),
        }
        answer
    }
}

impl CertificateService {
    async fn create(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        let caller = self.authenticator.authenticate(request.metadata()).await?;
        let request = request.into_inner();
        if metadata(&request, "CertSigner").is_some() {
            return Err(Status::unimplemented("external certificate signers are not supported"));
        }
        let identity = self.identity(&caller, &request).map_err(|why| {
            // One text for all reasons: a caller learns nothing about who runs where.
            warn!(?caller, wanted = metadata(&request, "ImpersonatedIdentity"), why, "refused a certificate");
            Status::unauthenticated("request authenticate failure")
        })?;
        let chain = self.issue(&request, &identity).map_err(|error| refusal(&identity, &error))?;
        info!(%identity, caller = %format!("{}/{}", caller.namespace, caller.service_account), "issued a certificate");
        Ok(Response::new(IstioCertificateResponse { cert_chain: chain }))
    }

    /// The identity that the caller may have a certificate for.
    fn identity(&self, caller: &Caller, request: &IstioCertificateRequest) -> Result<Identity, &'static str> {
        let Some(wanted) = metadata(request, "ImpersonatedIdentity") else {
            return Identity::new(&self.trust_domain, &caller.namespace, &caller.service_account)
                .map_err(|_| "its account has no identity");
        };
        let account_name = format!("{}/{}", caller.namespace, caller.service_account);
        if !self.trusted_node_accounts.contains(&account_name) {
            return Err("it is not trusted to ask for others");
        }
        let wanted: Identity = wanted.parse().map_err(|_| "the wanted identity is not one")?;
        if wanted.trust_domain() != self.trust_domain {
            return Err("the wanted identity is of another trust domain");
        }
        let bound = caller.pod.as_ref().ok_or("its token is not bound to a pod")?;
        let pod = self.pods.pod(&caller.namespace, &bound.name).ok_or("its pod is not known")?;
        if pod.metadata.uid.as_deref() != Some(bound.uid.as_str()) {
            return Err("its pod has been replaced");
        }
        if account(&pod) != caller.service_account {
            return Err("its pod has another service account");
        }
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
        if node.is_empty() {
            return Err("its pod is on no node");
        }
        match self.pods.runs_on(&wanted, node) {
            true => Ok(wanted),
            false => Err("no pod of the wanted identity is on its node"),
        }
    }

    fn issue(
        &self,
        request: &IstioCertificateRequest,
        identity: &Identity,
    ) -> Result<Vec<String>, AuthorityError> {
        let csr = CertificateRequest::parse(&request.csr)?;
        let lifetime = self.lifetimes.grant(request.validity_duration)?;
        let leaf = self.authority.sign(&csr, &identity.to_string(), lifetime, self.clock.wall())?;
        Ok(vec![leaf, self.authority.root_pem().to_owned()])
    }
}

/// What the caller learns of a failure.
fn refusal(identity: &Identity, error: &AuthorityError) -> Status {
    match error {
        AuthorityError::Request(_)
        | AuthorityError::RequestIdentity { .. }
        | AuthorityError::Lifetime { .. } => {
            debug!(%identity, %error, "refused a certificate request");
            Status::invalid_argument(error.to_string())
        }
        _ => {
            error!(%identity, error = error as &dyn std::error::Error, "cannot issue certificates");
            Status::internal("cannot issue a certificate")
        }
    }
}

/// A text value of the request's metadata; empty counts as none.
fn metadata<'a>(request: &'a IstioCertificateRequest, key: &str) -> Option<&'a str> {
    match request.metadata.as_ref()?.fields.get(key)?.kind.as_ref()? {
        Kind::StringValue(text) if !text.is_empty() => Some(text),
        _ => None,
    }
}
