//! Packet rules of a pod and of the host as data, and their rendering to netlink messages.
//! It never applies them.
