//! Network namespaces, netlink, descriptor passing, socket options, mounts, /proc and cgroups.
//! It never holds policy. It is the only room with unsafe code.

pub mod mount;
