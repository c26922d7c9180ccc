//! The demo from the start of the cluster to its clean end.

use crate::checks::{Scene, Timing, killed, made, run_all};
use crate::cluster::{Cluster, Programs};
use crate::machine::{Observed, processes_of};
use crate::memory;
use crate::pods;
use crate::report::{Line, Report, progress};
use anyhow::{Context as _, Result, bail};
use std::path::Path;
use std::time::Instant;

/// Whether the cluster ends with the demo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Afterwards {
    /// It ends, and nothing of it stays.
    CleanUp,
    /// It runs on, for a look with kubectl.
    Keep,
}

/// What to run the demo with.
#[derive(Debug)]
pub struct Demo<'a> {
    /// The built programs.
    pub programs: Programs,
    /// Folder of the example manifests.
    pub examples: &'a Path,
    /// Another node proxy's program to run in place of ours.
    pub proxy: Option<&'a Path>,
    /// Empty folder for all state.
    pub state: &'a Path,
    /// How strictly times are judged.
    pub timing: Timing,
    /// What happens to the cluster afterwards.
    pub afterwards: Afterwards,
}

impl Demo<'_> {
    /// Starts a cluster, makes all checks, shows each, and cleans up.
    ///
    /// Call inside [`crate::sandbox::enter`]'s namespaces.
    ///
    /// # Errors
    /// The cluster cannot be started. Broken promises are in the report.
    #[expect(clippy::disallowed_methods, reason = "the demo measures what a user sees")]
    pub async fn run(self) -> Result<Report> {
        let before = Observed::now()?;
        let mut report = Report::default();
        progress("packing the demo image");
        Cluster::pack_image(&self.programs, self.state)?;
        progress("starting the cluster: ambit up");
        let mut cluster = Cluster::start(&self.programs, self.state, self.examples, self.proxy)?;
        let client = cluster.client().await?;
        progress(&format!("the API answers after {} ms", cluster.started.elapsed().as_millis()));
        let (server, _) = tokio::try_join!(
            pods::of_app(&client, "demo", "server"),
            pods::of_app(&client, "demo", "client")
        )
        .with_context(|| {
            format!("the demo's pods did not start; log of ambit up:\n{}", cluster.log_tail())
        })?;
        progress(&format!(
            "the server runs at {} after {} ms",
            pods::address(&server)?,
            cluster.started.elapsed().as_millis()
        ));
        pods::first_answer(&client, "demo", "client").await?;
        progress(&format!(
            "the first captured request was answered after {} ms",
            cluster.started.elapsed().as_millis()
        ));
        progress(&format!("resident memory: {}", memory::line(&memory::of_tree(cluster.pid()))));
        let policies = self.examples.join("policies");
        run_all(&Scene { cluster: &cluster, client, policies, timing: self.timing }, &mut report).await;
        made(
            &mut report,
            "a killed ambit up starts again with all objects and running pods",
            killed(&mut cluster),
        )
        .await;
        if self.afterwards == Afterwards::Keep {
            show_how_to_use(&cluster);
            cluster.keep();
            return Ok(report);
        }
        progress("stopping the cluster");
        let started = Instant::now();
        let seen = self.nothing_left(cluster, &before).map_err(|e| format!("{e:#}"));
        report.add(Line {
            promise: "after the end nothing is left on the machine",
            seen,
            took: started.elapsed(),
        });
        Ok(report)
    }

    fn nothing_left(&self, cluster: Cluster, before: &Observed) -> Result<String> {
        let took = cluster.stop()?;
        let mut left = Observed::now()?.new_since(before);
        left.extend(processes_of(self.state)?);
        if !left.is_empty() {
            bail!("left behind: {}", left.join("\n"));
        }
        Ok(format!(
            "no process, mount, link, table, network namespace, control group, CNI file or socket; ambit up ended in {} ms",
            took.as_millis()
        ))
    }
}

fn show_how_to_use(cluster: &Cluster) {
    let enter = format!("nsenter -t {} -n -m", cluster.pid());
    progress("the cluster runs on, in network and mount namespaces of its own. Use it with:");
    progress(&format!("  {enter} kubectl --kubeconfig {} get pods -A", cluster.kubeconfig().display()));
    progress(&format!(
        "  {enter} kubectl --kubeconfig {} -n demo logs deploy/client -f",
        cluster.kubeconfig().display()
    ));
    progress(&format!("end it with: kill -INT {}", cluster.pid()));
}
