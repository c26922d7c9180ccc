//! Task groups, shutdown, readiness, clock, logging, metrics and the admin endpoint.
//! It never knows a word of the domain.

pub mod backoff;
pub mod clock;
pub mod endpoint;
pub mod logging;
pub mod process;
pub mod readiness;
pub mod tasks;

pub use backoff::Backoff;
pub use clock::{Clock, Entropy};
pub use readiness::{Blocker, Readiness};
pub use tasks::TaskGroup;
/// Tells tasks to stop. Cancel safe; clones share one state.
pub use tokio_util::sync::CancellationToken as Shutdown;
