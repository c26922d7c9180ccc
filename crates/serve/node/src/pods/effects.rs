//! Carries out the steps of a pod's plan.

use super::container_config::{self, Run, log_path};
use super::materials::{self, Tokens};
use super::{host_files, log_dir, sandbox_config, status_patch, volumes};
use crate::containerd::remove_cgroup;
use crate::context::{Context, Event, identity};
use crate::error::Error;
use ambit_api::core::v1::{Container, Pod, Service};
use ambit_node_plan::pod::environment::environment;
use ambit_node_plan::pod::files::variable_references;
use ambit_node_plan::pod::{Effect, Failure, FailureKind, KillReason, Outcome, init_containers, resources};
use ambit_proto::cri::Image;
use futures::future::join_all;
use kube::api::{Api, DeleteParams, Preconditions};
use std::net::IpAddr;
use std::sync::Arc;
use tracing::warn;

/// What carrying out a step needs beside the step.
pub(super) struct Scene<'a> {
    pub(super) context: &'a Context,
    pub(super) pod: &'a Pod,
    /// Addresses of the current sandbox.
    pub(super) pod_ips: &'a [IpAddr],
    pub(super) tokens: &'a mut Tokens,
}

impl Scene<'_> {
    /// Carries out one step other than a kill. `Err` means that the rest of the plan has to wait.
    pub(super) async fn carry_out(&mut self, effect: &Effect) -> Result<Option<Outcome>, Error> {
        let cri = &self.context.cri;
        match effect {
            Effect::CreateSandbox { attempt } => Ok(Some(self.create_sandbox(*attempt).await)),
            Effect::StopSandbox { id } => {
                cri.stop_sandbox(id).await?;
                Ok(Some(Outcome::SandboxStopped { id: id.clone() }))
            }
            Effect::RemoveSandbox { id } => cri.remove_sandbox(id).await.map(|()| None),
            Effect::StartContainer { name, attempt, sandbox } => {
                let started = self.start_container(name, *attempt, sandbox).await;
                Ok(Some(started.map_or_else(
                    |failure| Outcome::StartFailed { name: name.clone(), failure },
                    |()| Outcome::Started { name: name.clone(), attempt: *attempt },
                )))
            }
            Effect::RemoveContainer { id, name, attempt } => {
                cri.remove_container(id).await?;
                let _ = std::fs::remove_file(log_dir(self.context, self.pod).join(log_path(name, *attempt)));
                Ok(None)
            }
            Effect::CleanUp => self.clean_up().await.map(|()| Some(Outcome::CleanedUp)),
            Effect::DeletePod => self.delete_pod().await.map(|()| Some(Outcome::Deleted)),
            Effect::KillContainer { .. } => Ok(None),
        }
    }

    async fn create_sandbox(&mut self, attempt: u32) -> Outcome {
        if let Err(error) = volumes::prepare(self.context, self.pod, self.pod_ips, self.tokens).await {
            self.context.event(self.pod, None, Event::warning("FailedMount", error.to_string()));
            return Outcome::SandboxFailed;
        }
        let dir = log_dir(self.context, self.pod);
        let made = std::fs::create_dir_all(&dir).map_err(Error::file("make the directory", &dir));
        let config = sandbox_config::sandbox_config(self.context, self.pod, attempt);
        let run = async {
            made?;
            self.context.cri.run_sandbox(config).await
        };
        match run.await {
            Ok(_) => Outcome::SandboxCreated,
            Err(error) => {
                let text = format!("Failed to create pod sandbox: {}", error.full_text());
                let (namespace, name, _) = identity(self.pod);
                warn!(pod = %format!("{namespace}/{name}"), error = %error.full_text(), "cannot create a sandbox");
                self.context.event(self.pod, None, Event::warning("FailedCreatePodSandBox", text));
                Outcome::SandboxFailed
            }
        }
    }

    async fn start_container(&mut self, name: &str, attempt: u32, sandbox: &str) -> Result<(), Failure> {
        let spec = self.pod.spec.clone().unwrap_or_default();
        let all = || init_containers(&spec).iter().chain(&spec.containers);
        let Some(container) = all().find(|c| c.name == name) else {
            return Err(config_failure(format!("container {name:?} is not in the pod")));
        };
        let result = self.try_start(container, attempt, sandbox).await;
        if let Err(failure) = &result {
            let text = match failure.kind {
                FailureKind::Run | FailureKind::Config | FailureKind::Create => {
                    format!("Error: {}", failure.message)
                }
                FailureKind::ImagePull | FailureKind::ImageNeverPull => failure.message.clone(),
            };
            self.context.event(self.pod, Some(name), Event::warning("Failed", text));
        }
        result
    }

    async fn try_start(&mut self, container: &Container, attempt: u32, sandbox: &str) -> Result<(), Failure> {
        let name = container.name.as_str();
        let image = self.image(container).await?;
        let environment = self.environment(container).await?;
        let hostname = sandbox_config::hostname(self.context, self.pod);
        let hosts_file = host_files::write(self.context, self.pod, &hostname, self.pod_ips)
            .map_err(|e| config_failure(e.full_text()))?;
        let run =
            Run { pod: self.pod, container, attempt, environment, image: &image, hosts_file: &hosts_file };
        let config = container_config::container_config(self.context, &run).map_err(config_failure)?;
        let sandbox_config = sandbox_config::sandbox_config(self.context, self.pod, 0);
        let cri = &self.context.cri;
        let failure = |kind| move |e: Error| Failure { kind, message: e.full_text() };
        let id = cri
            .create_container(sandbox, config, sandbox_config)
            .await
            .map_err(failure(FailureKind::Create))?;
        self.context.event(
            self.pod,
            Some(name),
            Event::normal("Created", format!("Created container: {name}")),
        );
        cri.start_container(&id).await.map_err(failure(FailureKind::Run))?;
        self.context.event(
            self.pod,
            Some(name),
            Event::normal("Started", format!("Started container {name}")),
        );
        Ok(())
    }

    /// The image, which has to be there already.
    async fn image(&self, container: &Container) -> Result<Image, Failure> {
        let name = container.image.as_deref().unwrap_or_default();
        let tag = name.rsplit('/').next().and_then(|last| last.split_once(':'));
        let is_latest = !name.contains('@') && tag.is_none_or(|(_, tag)| tag == "latest");
        let default = if is_latest { "Always" } else { "IfNotPresent" };
        let policy = container.image_pull_policy.as_deref().unwrap_or(default);
        let refused = |kind, message: String| Failure { kind, message };
        let found = self.context.cri.image(name).await;
        let found = found.map_err(|e| refused(FailureKind::ImagePull, e.full_text()))?;
        match (found, policy) {
            (Some(image), "IfNotPresent" | "Never") => {
                let text = format!("Container image {name:?} already present on machine");
                self.context.event(self.pod, Some(&container.name), Event::normal("Pulled", text));
                Ok(image)
            }
            (None, "Never") => Err(refused(
                FailureKind::ImageNeverPull,
                format!("Container image {name:?} is not present with pull policy of Never"),
            )),
            (found, _) => {
                let hint = if found.is_some() {
                    "it is on the node: set imagePullPolicy: IfNotPresent"
                } else {
                    "import it with `ambit image import FILE`"
                };
                let text =
                    format!("Failed to pull image {name:?}: registry pulls are not served yet; {hint}");
                Err(refused(FailureKind::ImagePull, text))
            }
        }
    }

    async fn environment(&mut self, container: &Container) -> Result<Vec<(String, String)>, Failure> {
        let references = variable_references(container);
        let materials = materials::fetch(self.context, self.pod, &references, self.tokens)
            .await
            .map_err(|e| config_failure(e.full_text()))?;
        let services = self.visible_services();
        let services: Vec<&Service> = services.iter().map(AsRef::as_ref).collect();
        let facts = self.context.facts(self.pod_ips);
        environment(self.pod, container, &materials, &services, &facts)
            .map_err(|e| config_failure(e.to_string()))
    }

    /// The API server's service, and those of the pod's namespace unless it does not want them.
    fn visible_services(&self) -> Vec<Arc<Service>> {
        let (namespace, ..) = identity(self.pod);
        let links = self.pod.spec.as_ref().and_then(|s| s.enable_service_links).unwrap_or(true);
        let services = &self.context.services;
        let mut visible = if links { services.list_in(namespace) } else { Vec::new() };
        if namespace != "default" || !links {
            visible.extend(services.get(Some("default"), "kubernetes"));
        }
        visible
    }

    async fn clean_up(&self) -> Result<(), Error> {
        let (_, _, uid) = identity(self.pod);
        volumes::remove(self.context, self.pod)?;
        let dir = log_dir(self.context, self.pod);
        match std::fs::remove_dir_all(&dir) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::file("remove the directory", dir)(e));
            }
            _ => {}
        }
        let qos = resources::qos_class(&self.pod.spec.clone().unwrap_or_default());
        remove_cgroup(&self.context.layout.pod_cgroup(qos, uid)).await;
        Ok(())
    }

    async fn delete_pod(&self) -> Result<(), Error> {
        let (namespace, name, uid) = identity(self.pod);
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), namespace);
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
            ..DeleteParams::default()
        };
        let attempt = || format!("delete the pod {namespace}/{name}");
        match tokio::time::timeout(status_patch::WRITE_WAIT, api.delete(name, &params)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(e)) if ambit_kube::is_not_found(&e) || ambit_kube::is_conflict(&e) => Ok(()),
            Ok(Err(source)) => Err(Error::Api { attempt: attempt(), source: Box::new(source) }),
            Err(_) => {
                Err(Error::ApiDeadline { attempt: attempt(), seconds: status_patch::WRITE_WAIT.as_secs() })
            }
        }
    }
}

fn config_failure(message: String) -> Failure {
    Failure { kind: FailureKind::Config, message }
}

/// Carries out all kills of a plan at once. Cancel safe: kills that were not finished are planned again.
pub(super) async fn kill(context: &Context, pod: &Pod, kills: &[Effect]) -> Result<(), Error> {
    let all = kills.iter().filter_map(|effect| match effect {
        Effect::KillContainer { id, name, grace, reason } => Some((id, name, *grace, *reason)),
        _ => None,
    });
    let ended = join_all(all.map(|(id, name, grace, reason)| async move {
        let text = match reason {
            KillReason::PodEnds | KillReason::SandboxChanged => format!("Stopping container {name}"),
            KillReason::Probe(kind) => {
                let word = kind.word().to_lowercase();
                format!("Container {name} failed {word} probe, will be restarted")
            }
        };
        context.event(pod, Some(name), Event::normal("Killing", text));
        context.cri.stop_container(id, grace).await
    }));
    ended.await.into_iter().collect()
}
