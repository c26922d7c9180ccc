//! Kubernetes and Istio objects to the mesh's workloads, services and policies.
//! It never speaks xDS or holds a stream.
