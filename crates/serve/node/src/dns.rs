//! Cluster DNS: names of services and endpoints from informers, everything else from the upstream name servers.
//!
//! It listens where pods and the host look for it, on the address of the `kube-dns` Service (10.96.0.10), port 53. That
//! address is held by the node's own link `ambit-svc0` (see [`crate::services`]), as NodeLocal DNS holds its own on a
//! dummy link: packets from pods reach it through their gateway, those of the host through loopback, and neither
//! needs address translation, a free port 53 on any other address, or a running proxy. The sockets are bound with
//! `IP_FREEBIND`, so it does not matter which of the two comes up first.

mod answer;
mod forward;
mod message;
mod publish;
mod server;
mod zone;

use ambit_api::core::v1::Service;
use ambit_api::discovery::v1::EndpointSlice;
use ambit_kube::{Informer, Informers, Query};
use ambit_runtime::{Blocker, Shutdown, TaskGroup};
use arc_swap::ArcSwap;
use forward::Forwarder;
use hickory_proto::rr::Name;
use ipnet::IpNet;
use server::Responder;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::Notify;
use tracing::{info, warn};
use zone::{Origin, Zone};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Time that writing the Service may take, before the start is given up.
const PUBLISH_WAIT: Duration = Duration::from_secs(15);

/// Settings of the cluster DNS.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Domain of the cluster, such as `cluster.local`.
    pub cluster_domain: String,
    /// Addresses and ports to answer on.
    pub listen: Vec<SocketAddr>,
    /// Networks of pods and services: their reverse names are answered here and never asked upstream.
    pub networks: Vec<IpNet>,
    /// Name servers for every other name, asked in order; the first three count. None: such names are refused.
    pub upstreams: Vec<SocketAddr>,
}

/// Why cluster DNS does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The domain is no domain name.
    #[error("the cluster domain {domain:?} is not a domain name")]
    Domain {
        /// As set.
        domain: String,
        /// What is wrong.
        #[source]
        source: hickory_proto::ProtoError,
    },
    /// A socket cannot be opened.
    #[error(
        "cluster DNS cannot listen on {address} ({protocol}): stop what uses that port, or set another address"
    )]
    Listen {
        /// Where.
        address: SocketAddr,
        /// `udp` or `tcp`.
        protocol: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The `kube-dns` Service cannot be written.
    #[error("writing the Service kube-system/kube-dns")]
    Publish(#[source] kube::Error),
    /// The API server did not answer.
    #[error("writing the Service kube-system/kube-dns took over {} s: is the API server up?", PUBLISH_WAIT.as_secs())]
    PublishWait,
    /// The `kube-dns` Service has another address, and an address never changes.
    #[error(
        "the Service kube-system/kube-dns has the address {found}, not {wanted}: set that as the DNS address, or delete the Service"
    )]
    OtherAddress {
        /// Of the Service.
        found: String,
        /// As set.
        wanted: IpAddr,
    },
    /// A task ended.
    #[error("cluster DNS stopped")]
    Task(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The name server, before it runs.
#[derive(Debug)]
pub struct Dns {
    settings: Settings,
    origin: Origin,
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    changed: Arc<Notify>,
}

/// The decisions of the name server without its sockets, for benchmarks and fuzzing.
#[derive(Debug)]
pub struct Answerer(Zone);

impl Answerer {
    /// Answers from these objects.
    ///
    /// # Errors
    /// The cluster domain is no domain name.
    pub fn new(settings: &Settings, services: &[Service], slices: &[EndpointSlice]) -> Result<Self, Error> {
        Ok(Self(Zone::build(origin(settings)?, services, slices)))
    }

    /// The answer to one datagram; none if there is none, or it would have to be asked upstream.
    pub fn answer(&self, query: &[u8]) -> Option<Vec<u8>> {
        match message::plan(query, &self.0, message::Transport::Udp, 0) {
            message::Step::Reply(bytes) => Some(bytes),
            _ => None,
        }
    }
}

fn origin(settings: &Settings) -> Result<Origin, Error> {
    let mut domain = Name::from_ascii(&settings.cluster_domain)
        .map_err(|source| Error::Domain { domain: settings.cluster_domain.clone(), source })?
        .to_lowercase();
    domain.set_fqdn(true);
    let server = settings.listen.iter().map(SocketAddr::ip).collect();
    Ok(Origin { domain, server, networks: settings.networks.clone() })
}

impl Dns {
    /// Registers what it watches; no I/O. The informers are to be started before [`Dns::run`].
    ///
    /// # Errors
    /// The cluster domain is no domain name.
    pub fn new(settings: Settings, informers: &Informers) -> Result<Self, Error> {
        let origin = origin(&settings)?;
        let services = informers.informer::<Service>(Query::all());
        let slices = informers.informer::<EndpointSlice>(Query::all());
        let changed = Arc::new(Notify::new());
        let signal = Arc::clone(&changed);
        services.on_change(move |_| signal.notify_one());
        let signal = Arc::clone(&changed);
        slices.on_change(move |_| signal.notify_one());
        Ok(Self { settings, origin, services, slices, changed })
    }

    /// Writes the `kube-dns` Service of the first address it listens on, then answers until `shutdown`.
    ///
    /// # Errors
    /// A socket cannot be opened, or the Service cannot be written.
    pub async fn run(self, client: kube::Client, blocker: Blocker, shutdown: Shutdown) -> Result<(), Error> {
        if let Some(address) = self.settings.listen.first() {
            tokio::time::timeout(PUBLISH_WAIT, publish::ensure_service(&client, *address))
                .await
                .map_err(|_| Error::PublishWait)??;
        }
        let zone = Arc::new(ArcSwap::from_pointee(self.build()));
        let responder = Responder::new(Arc::clone(&zone), Forwarder::new(&self.upstreams()));
        let mut tasks = TaskGroup::<Error>::new(shutdown.child_token());
        for address in &self.settings.listen {
            let (datagrams, connections) = (listen_udp(*address)?, listen_tcp(*address)?);
            let (responder, stop) = (responder.clone(), tasks.shutdown().clone());
            let (other, other_stop) = (responder.clone(), stop.clone());
            tasks.spawn("udp", async move {
                server::serve_udp(datagrams, responder, stop).await;
                Ok(())
            });
            tasks.spawn("tcp", async move {
                server::serve_tcp(connections, other, other_stop).await;
                Ok(())
            });
            info!(%address, domain = %self.settings.cluster_domain, "started cluster DNS");
        }
        drop(blocker);
        let stop = tasks.shutdown().clone();
        tasks.spawn("zone", async move {
            loop {
                // Cancel safe: a notification that is not taken stays.
                tokio::select! {
                    () = self.changed.notified() => zone.store(Arc::new(self.build())),
                    () = stop.cancelled() => return Ok(()),
                }
            }
        });
        tasks.join().await.map_err(|error| Error::Task(Box::new(error)))
    }

    fn build(&self) -> Zone {
        let (services, slices) = (self.services.list(), self.slices.list());
        Zone::build(self.origin.clone(), services.iter().map(AsRef::as_ref), slices.iter().map(AsRef::as_ref))
    }

    /// The upstream servers, without this one: asking itself would never end.
    fn upstreams(&self) -> Vec<SocketAddr> {
        let (own, others): (Vec<SocketAddr>, Vec<SocketAddr>) =
            self.settings.upstreams.iter().partition(|server| self.settings.listen.contains(server));
        for server in own {
            warn!(%server, "left out an upstream name server: it is this one");
        }
        others
    }
}

fn listen_udp(address: SocketAddr) -> Result<UdpSocket, Error> {
    let open = || UdpSocket::from_std(bound(address, Type::DGRAM, Protocol::UDP)?.into());
    open().map_err(|source| Error::Listen { address, protocol: "udp", source })
}

fn listen_tcp(address: SocketAddr) -> Result<TcpListener, Error> {
    let open = || {
        let socket = bound(address, Type::STREAM, Protocol::TCP)?;
        socket.listen(BACKLOG)?;
        TcpListener::from_std(socket.into())
    };
    open().map_err(|source| Error::Listen { address, protocol: "tcp", source })
}

fn bound(address: SocketAddr, kind: Type, protocol: Protocol) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    socket.set_nonblocking(true)?;
    if address.is_ipv4() {
        socket.set_freebind_v4(true)?;
    } else {
        socket.set_freebind_v6(true)?;
        socket.set_only_v6(true)?;
    }
    if kind == Type::STREAM {
        socket.set_reuse_address(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

#[cfg(test)]
mod tests;
