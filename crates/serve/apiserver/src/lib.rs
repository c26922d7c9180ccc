//! The REST front of schema, patches and store: a Kubernetes API server, over TLS and in process.
//! It never runs a built-in controller.
