//! Typed resources: the Kubernetes kinds we use and the Istio kinds we honour, with their CRDs.
//! It never does I/O.
