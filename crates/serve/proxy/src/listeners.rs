//! The listeners of a captured pod, inside its namespace.

use crate::connections::Connections;
use crate::pod::{Pod, Shared};
use crate::pool::Pool;
use crate::{inbound, outbound, plaintext};
use ambit_linux::netns::NetNs;
use ambit_linux::socket::{self, Listening, canonical};
use ambit_names::port;
use ambit_runtime::Shutdown;
use ambit_traffic::LocalName;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use tracing::{debug, info};

/// Connections that one listener of one pod serves at once; more wait in the kernel, and cost only this pod.
const CONNECTIONS_MAX: usize = 16 * 1024;
/// Pause after a failed accept, which is mostly for want of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The ports of a pod, and what serves them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Outbound,
    Plaintext,
    Hbone,
}

const ROLES: [(Role, u16); 3] = [
    (Role::Outbound, port::OUTBOUND),
    (Role::Plaintext, port::INBOUND_PLAINTEXT),
    (Role::Hbone, port::INBOUND_HBONE),
];

/// Opens the listeners of a pod and begins to serve it. Cancel safe: nothing is left when dropped.
pub(crate) async fn start(
    shared: &Arc<Shared>,
    uid: &str,
    name: LocalName,
    namespace: NetNs,
) -> io::Result<Arc<Pod>> {
    let namespace = Arc::new(namespace);
    let settings = &shared.settings;
    let (mark, ipv6, transparency) = (settings.mark, settings.ipv6, settings.transparency);
    let open_families = move |ipv6| {
        let listen = |(role, port): (Role, u16)| {
            socket::listen(socket::wildcard(port, ipv6), mark, transparency).map(|made| (role, made))
        };
        ROLES.into_iter().map(listen).collect::<io::Result<Vec<(Role, Listening)>>>()
    };
    let open = move || match open_families(ipv6) {
        // A kernel without IPv6 makes no such socket: the pod has no IPv6 traffic to miss then.
        Err(error) if ipv6 && socket::family_missing(&error) => open_families(false),
        opened => opened,
    };
    let listening = shared.sockets.run(&namespace, open).await?;
    let spoofs = listening.iter().all(|(_, made)| made.transparent);
    let listeners = listening
        .into_iter()
        .map(|(role, made)| Ok((role, TcpListener::from_std(made.listener)?)))
        .collect::<io::Result<Vec<_>>>()?;
    let pod = Arc::new(Pod {
        uid: uid.to_owned(),
        name,
        namespace,
        shared: shared.clone(),
        pool: Pool::new(settings.pool_streams_max, settings.pool_idle),
        connections: Arc::new(Connections::default()),
        spoofs,
        drain: Shutdown::new(),
        kill: Shutdown::new(),
        tasks: TaskTracker::new(),
    });
    for (role, listener) in listeners {
        pod.tasks.spawn(accept(pod.clone(), role, listener));
    }
    pod.tasks.spawn(pod.clone().enforce());
    pod.tasks.spawn(sweep(pod.clone()));
    info!(pod = %uid, name = %pod.name.name, namespace = %pod.name.namespace, netns = pod.namespace.inode(), "started pod");
    shared.pods().insert(uid.to_owned(), Arc::downgrade(&pod));
    shared.metrics.pods_active.inc();
    shared.metrics.pods_started.inc();
    Ok(pod)
}

/// Stops a pod: no new connections at once, open ones end within `grace`, then all are closed.
pub(crate) async fn stop(pod: Arc<Pod>, grace: Duration) {
    pod.drain.cancel();
    pod.pool.release();
    pod.tasks.close();
    if grace.is_zero() || tokio::time::timeout(grace, connections_ended(&pod)).await.is_err() {
        debug!(pod = %pod.uid, "closing open connections");
    }
    pod.kill.cancel();
    pod.tasks.wait().await;
    // A new pod may have taken the uid over already.
    let mut pods = pod.shared.pods();
    if pods.get(&pod.uid).is_some_and(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(&pod))) {
        pods.remove(&pod.uid);
    }
    drop(pods);
    pod.shared.metrics.pods_active.dec();
    pod.shared.metrics.pods_stopped.inc();
    info!(pod = %pod.uid, name = %pod.name.name, namespace = %pod.name.namespace, "stopped pod");
}

/// Waits until only the pod's own upkeep runs.
async fn connections_ended(pod: &Pod) {
    /// The tasks of a pod that are not connections: `enforce` and `sweep`.
    const UPKEEP_TASKS: usize = 2;
    /// Between two looks.
    const POLL: Duration = Duration::from_millis(20);
    while pod.tasks.len() > UPKEEP_TASKS {
        tokio::time::sleep(POLL).await;
    }
}

async fn sweep(pod: Arc<Pod>) {
    tokio::select! {
        () = pod.pool.sweep() => {}
        () = pod.kill.cancelled() => {}
    }
}

async fn accept(pod: Arc<Pod>, role: Role, listener: TcpListener) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = tokio::select! {
            accepted = async {
                // The semaphore is never closed.
                let permit = permits.clone().acquire_owned().await.ok();
                listener.accept().await.map(|(tcp, from)| (permit, tcp, from))
            } => accepted,
            () = pod.drain.cancelled() => return,
            () = pod.kill.cancelled() => return,
        };
        match accepted {
            Ok((permit, tcp, from)) => {
                let connection = serve(pod.clone(), role, tcp, canonical(from));
                pod.tasks.spawn(async move {
                    connection.await;
                    drop(permit);
                });
            }
            Err(error) => {
                debug!(pod = %pod.uid, %error, "cannot accept");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn serve(pod: Arc<Pod>, role: Role, tcp: TcpStream, from: SocketAddr) {
    // Tunnels have their own pings.
    let keepalive = pod.shared.settings.keepalive.filter(|_| role != Role::Hbone);
    if let Err(error) = socket::prepare_accepted(&tcp, keepalive) {
        return debug!(pod = %pod.uid, %error, "connection ended before it was served");
    }
    match role {
        Role::Outbound => outbound::serve(pod, tcp, from).await,
        Role::Plaintext => plaintext::serve(pod, tcp, from).await,
        Role::Hbone => inbound::serve(pod, tcp, from).await,
    }
}
