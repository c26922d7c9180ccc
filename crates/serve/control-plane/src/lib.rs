//! The mesh control plane: collections, delta xDS server and certificate authority.
//! It never decides what a workload is: decide/mesh does.
