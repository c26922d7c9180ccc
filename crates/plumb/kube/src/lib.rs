//! Informers that start in one place, the work queue and writers, on kube-rs.
//! It never decides what is to be written.
