//! Runs an API server alone, for development: `cargo run -p ambit-apiserver --example serve -- DIR PORT`.
//! Keeps its state in DIR and writes DIR/kubeconfig with administrator's rights. No controllers run.

use ambit_apiserver::{ApiServer, Settings, Storage};
use ambit_runtime::{Readiness, Shutdown, logging};
use ambit_trust::pki::{ClusterPki, kubeconfig};
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(dir), Some(port)) = (args.next(), args.next()) else {
        return Err("usage: serve DIR PORT".into());
    };
    logging::init("info", logging::LogFormat::Text)?;
    let (dir, port): (PathBuf, u16) = (dir.into(), port.parse()?);
    let pki = ClusterPki::load_or_create(&dir.join("pki"), &["127.0.0.1".into(), "localhost".into()])?;
    let server = ApiServer::open(Settings {
        storage: Storage::Disk(dir.clone()),
        listen: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        advertise: None,
        pki: pki.clone(),
        service_cidr: "10.96.0.0/16".parse()?,
        cluster_domain: "cluster.local".into(),
    })
    .await?;
    let address = server.address().ok_or("the server does not listen")?;
    let admin = pki.issue_client("admin", &["system:masters"], Duration::from_secs(24 * 3600))?;
    let config = kubeconfig(&format!("https://{address}"), pki.ca_pem(), &admin.cert_pem, &admin.key_pem);
    std::fs::write(dir.join("kubeconfig"), config)?;
    let shutdown = Shutdown::new();
    let stop = shutdown.clone();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        stop.cancel();
    });
    Ok(server.run(Readiness::default(), shutdown).await?)
}
