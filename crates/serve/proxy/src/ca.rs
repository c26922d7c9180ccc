//! The client of the certificate authority.

use crate::control;
use crate::error::ControlError;
use crate::settings::Settings;
use ambit_proto::ca::IstioCertificateRequest;
use ambit_proto::ca::istio_certificate_service_client::IstioCertificateServiceClient;
use ambit_trust::certificate::WorkloadCertificate;
use ambit_trust::csr;
use ambit_trust::spiffe::Identity;
use prost_types::{Struct, Value, value::Kind};
use std::sync::Arc;
use std::time::Duration;

/// One request, without connecting.
const CALL_DEADLINE: Duration = Duration::from_secs(10);

/// Fetches certificates.
#[derive(Debug)]
pub(crate) struct CaClient {
    settings: Arc<Settings>,
}

impl CaClient {
    pub(crate) fn new(settings: Arc<Settings>) -> Self {
        Self { settings }
    }

    /// Asks for a certificate of `identity`, with a new key. Each fetch connects anew: fetches are hours apart, and a
    /// rotated root or a moved server then needs no care.
    pub(crate) async fn fetch(&self, identity: &Identity) -> Result<WorkloadCertificate, ControlError> {
        let settings = &self.settings;
        let made = csr::request(identity)?;
        let impersonated = Value { kind: Some(Kind::StringValue(identity.to_string())) };
        let mut request = tonic::Request::new(IstioCertificateRequest {
            csr: made.pem.clone(),
            validity_duration: i64::try_from(settings.certificate_validity.as_secs()).unwrap_or(i64::MAX),
            metadata: Some(Struct { fields: [("ImpersonatedIdentity".to_owned(), impersonated)].into() }),
        });
        control::authenticate(settings, &mut request).await?;
        let mut client = IstioCertificateServiceClient::new(control::connect(&settings.ca).await?);
        let answer = tokio::time::timeout(CALL_DEADLINE, client.create_certificate(request))
            .await
            .map_err(|_| ControlError::Deadline(CALL_DEADLINE))??;
        Ok(WorkloadCertificate::read(identity, &made, &answer.into_inner().cert_chain)?)
    }
}
