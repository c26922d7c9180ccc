//! The REST front of schema, patches and store: a Kubernetes API server, over TLS and in process.
//! It never runs a built-in controller.

mod access;
mod address;
mod admit;
mod answer;
mod apply;
mod bootstrap;
mod cluster;
mod create;
mod database;
mod delete;
mod discovery;
mod disk;
mod disruption;
mod escalation;
mod etcd;
mod impersonate;
mod listener;
mod memory;
mod metadata;
mod metrics;
mod modify;
mod negotiate;
mod node_logs;
mod object;
mod ownership;
mod rbac;
mod read;
mod request;
mod reviews;
mod router;
mod scale;
mod selector;
mod server;
mod service;
mod status;
mod strategy;
mod subresources;
mod tokens;
mod watch;

pub use disk::DiskError;
pub use etcd::{EtcdError, EtcdSettings, EtcdTls};
pub use listener::ListenError;
pub use server::{ApiServer, Error, Settings, Storage};
