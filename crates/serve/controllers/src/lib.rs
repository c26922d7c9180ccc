//! Runs the controllers of decide/workloads on queues.
//! It never decides: it reads, asks a decider, writes.
