//! Informers that start in one place, the work queue and writers, on kube-rs.
//! It never decides what is to be written.

mod clusters;
mod conditions;
mod connect;
mod content;
mod decode;
mod definitions;
mod error;
mod events;
mod field_manager;
mod informer;
mod informer_metrics;
mod informers;
mod keep;
mod leader;
mod query;
mod queue;
mod queue_metrics;
mod roll;
mod selection;
mod watch;
mod write_error;
mod write_metrics;

pub use clusters::{ClusterChange, ClusterId, Clusters, Everywhere};
pub use conditions::{Finding, conditions};
pub use connect::{Liveness, connect};
pub use error::{InformerError, is_already_exists, is_conflict, is_not_found};
pub use events::{EventRecorder, EventType};
pub use field_manager::{Applier, FieldManager, Kept, ObjectSet, OnConflict, Written};
pub use informer::{Change, Informer, ObjectKey, Synced};
pub use informer_metrics::InformerMetrics;
pub use informers::Informers;
pub use keep::Keep;
pub use leader::{LeaderElection, LeaderError, LeaderSettings, LeaseLost, Term};
pub use query::Query;
pub use queue::{Next, Queue, QueueSettings};
pub use queue_metrics::QueueMetrics;
pub use selection::Selection;
pub use write_error::{ForeignField, WriteError};
pub use write_metrics::WriteMetrics;
