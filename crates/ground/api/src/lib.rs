//! Typed resources: the Kubernetes kinds we use and the Istio kinds we honour, with their CRDs.
//! It never does I/O.

pub use k8s_openapi;
/// The built-in kinds, by group and version: `ambit_api::core::v1::Pod`.
pub use k8s_openapi::api::{
    admissionregistration, apps, authentication, authorization, autoscaling, batch, certificates,
    coordination, core, discovery, events, networking, node, policy, rbac, scheduling, storage,
};
/// Custom resource definitions (`apiextensions.k8s.io/v1`).
pub use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
/// Resource quantities.
pub use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
/// Object and list metadata, `Status`, `Time`, label selectors.
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
/// A value that is a number or a string, such as a target port.
pub use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

pub mod istio;
pub mod slim;
pub use istio::crds;
