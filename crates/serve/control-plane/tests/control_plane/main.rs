//! The control plane on a real API server, seen by a raw client over TLS.

#[cfg(test)]
mod certificates;
#[cfg(test)]
mod client;
#[cfg(test)]
mod cluster;
#[cfg(test)]
mod discovery;
#[cfg(test)]
mod mesh_config;
#[cfg(test)]
mod objects;
