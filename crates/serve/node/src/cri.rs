//! The container runtime's interface, each call with a deadline.

use crate::error::Error;
use ambit_proto::cri::{
    Container, ContainerConfig, ContainerFilter, ContainerStatus, ContainerStatusRequest,
    CreateContainerRequest, ExecSyncRequest, ExecSyncResponse, Image, ImageSpec, ImageStatusRequest,
    ListContainersRequest, ListPodSandboxRequest, PodSandbox, PodSandboxConfig, PodSandboxFilter,
    PodSandboxStatus, PodSandboxStatusRequest, RemoveContainerRequest, RemovePodSandboxRequest,
    ReopenContainerLogRequest, RunPodSandboxRequest, StartContainerRequest, StatusRequest,
    StopContainerRequest, StopPodSandboxRequest, VersionRequest, VersionResponse,
    image_service_client::ImageServiceClient, runtime_service_client::RuntimeServiceClient,
};
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};

/// Deadline of calls that only look.
const LOOK_WAIT: Duration = Duration::from_secs(10);
/// Deadline of calls that start or remove something.
const WORK_WAIT: Duration = Duration::from_secs(60);
/// Largest answer in bytes. Source: kubelet's `maxMsgSize`.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Labels that kubelet puts on sandboxes and containers; other tools know them too.
pub(crate) mod label {
    pub(crate) const POD_NAME: &str = "io.kubernetes.pod.name";
    pub(crate) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
    pub(crate) const CONTAINER_NAME: &str = "io.kubernetes.container.name";
}

/// A client of the runtime. Clones share one connection, which is made when it is needed and again after it broke.
#[derive(Debug, Clone)]
pub(crate) struct Cri {
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
}

impl Cri {
    /// A client of the runtime at `socket`. No I/O.
    pub(crate) fn new(socket: &Path) -> Self {
        let socket: PathBuf = socket.to_owned();
        let connect = tower::service_fn(move |_: http::Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        // The address only fills the request's authority.
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(connect);
        let runtime = RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX);
        let images = ImageServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        Self { runtime, images }
    }

    pub(crate) async fn version(&self) -> Result<VersionResponse, Error> {
        let mut client = self.runtime.clone();
        let request = VersionRequest { version: String::new() };
        call("Version", LOOK_WAIT, client.version(request)).await
    }

    /// Why the runtime or its network is not ready; `None` when both are.
    pub(crate) async fn not_ready(&self) -> Result<Option<String>, Error> {
        let mut client = self.runtime.clone();
        let response = call("Status", LOOK_WAIT, client.status(StatusRequest { verbose: false })).await?;
        let conditions = response.status.map(|status| status.conditions).unwrap_or_default();
        let failing = conditions.into_iter().find(|condition| !condition.status);
        Ok(failing.map(|c| format!("{} is false: {} {}", c.r#type, c.reason, c.message)))
    }

    pub(crate) async fn run_sandbox(&self, config: PodSandboxConfig) -> Result<String, Error> {
        let mut client = self.runtime.clone();
        let request = RunPodSandboxRequest { config: Some(config), runtime_handler: String::new() };
        Ok(call("RunPodSandbox", WORK_WAIT, client.run_pod_sandbox(request)).await?.pod_sandbox_id)
    }

    pub(crate) async fn stop_sandbox(&self, id: &str) -> Result<(), Error> {
        let mut client = self.runtime.clone();
        let request = StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        gone_is_done(call("StopPodSandbox", WORK_WAIT, client.stop_pod_sandbox(request)).await)
    }

    pub(crate) async fn remove_sandbox(&self, id: &str) -> Result<(), Error> {
        let mut client = self.runtime.clone();
        let request = RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        gone_is_done(call("RemovePodSandbox", WORK_WAIT, client.remove_pod_sandbox(request)).await)
    }

    /// Sandboxes, of one pod or of all.
    pub(crate) async fn sandboxes(&self, pod_uid: Option<&str>) -> Result<Vec<PodSandbox>, Error> {
        let mut client = self.runtime.clone();
        let filter = PodSandboxFilter { id: String::new(), label_selector: of_pod(pod_uid) };
        let request = ListPodSandboxRequest { filter: Some(filter) };
        Ok(call("ListPodSandbox", LOOK_WAIT, client.list_pod_sandbox(request)).await?.items)
    }

    /// A sandbox; `None` if it is gone.
    pub(crate) async fn sandbox(&self, id: &str) -> Result<Option<PodSandboxStatus>, Error> {
        let mut client = self.runtime.clone();
        let request = PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
        let answer = call("PodSandboxStatus", LOOK_WAIT, client.pod_sandbox_status(request)).await;
        Ok(gone_is_none(answer)?.and_then(|response| response.status))
    }

    /// Containers, of one pod or of all.
    pub(crate) async fn containers(&self, pod_uid: Option<&str>) -> Result<Vec<Container>, Error> {
        let mut client = self.runtime.clone();
        let filter = ContainerFilter { label_selector: of_pod(pod_uid), ..ContainerFilter::default() };
        let request = ListContainersRequest { filter: Some(filter) };
        Ok(call("ListContainers", LOOK_WAIT, client.list_containers(request)).await?.containers)
    }

    /// A container; `None` if it is gone.
    pub(crate) async fn container(&self, id: &str) -> Result<Option<ContainerStatus>, Error> {
        let mut client = self.runtime.clone();
        let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let answer = call("ContainerStatus", LOOK_WAIT, client.container_status(request)).await;
        Ok(gone_is_none(answer)?.and_then(|response| response.status))
    }

    pub(crate) async fn create_container(
        &self,
        sandbox: &str,
        config: ContainerConfig,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String, Error> {
        let mut client = self.runtime.clone();
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        Ok(call("CreateContainer", WORK_WAIT, client.create_container(request)).await?.container_id)
    }

    pub(crate) async fn start_container(&self, id: &str) -> Result<(), Error> {
        let mut client = self.runtime.clone();
        let request = StartContainerRequest { container_id: id.to_owned() };
        call("StartContainer", WORK_WAIT, client.start_container(request)).await.map(drop)
    }

    /// Asks a container to end and kills it after `grace`. Cancel safe: another call may follow with a shorter grace.
    pub(crate) async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), Error> {
        let mut client = self.runtime.clone();
        let timeout = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        let request = StopContainerRequest { container_id: id.to_owned(), timeout };
        gone_is_done(call("StopContainer", grace + WORK_WAIT, client.stop_container(request)).await)
    }

    pub(crate) async fn remove_container(&self, id: &str) -> Result<(), Error> {
        let mut client = self.runtime.clone();
        let request = RemoveContainerRequest { container_id: id.to_owned() };
        gone_is_done(call("RemoveContainer", WORK_WAIT, client.remove_container(request)).await)
    }

    /// Has the runtime open a container's log file anew, after it was moved away.
    pub(crate) async fn reopen_log(&self, id: &str) -> Result<(), Error> {
        let mut client = self.runtime.clone();
        let request = ReopenContainerLogRequest { container_id: id.to_owned() };
        call("ReopenContainerLog", LOOK_WAIT, client.reopen_container_log(request)).await.map(drop)
    }

    /// Runs a command in a container.
    pub(crate) async fn exec(
        &self,
        id: &str,
        command: &[String],
        timeout: Duration,
    ) -> Result<ExecSyncResponse, Error> {
        let mut client = self.runtime.clone();
        let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
        let request =
            ExecSyncRequest { container_id: id.to_owned(), cmd: command.to_vec(), timeout: seconds };
        call("ExecSync", timeout + LOOK_WAIT, client.exec_sync(request)).await
    }

    /// An image that is there.
    pub(crate) async fn image(&self, name: &str) -> Result<Option<Image>, Error> {
        let mut client = self.images.clone();
        let spec = ImageSpec { image: name.to_owned(), annotations: HashMap::new() };
        let request = ImageStatusRequest { image: Some(spec), verbose: false };
        Ok(call("ImageStatus", LOOK_WAIT, client.image_status(request)).await?.image)
    }
}

fn of_pod(uid: Option<&str>) -> HashMap<String, String> {
    uid.map(|uid| (label::POD_UID.to_owned(), uid.to_owned())).into_iter().collect()
}

async fn call<T>(
    name: &'static str,
    wait: Duration,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Error> {
    match tokio::time::timeout(wait, answer).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(Error::Cri { call: name, source: Box::new(status) }),
        Err(_) => Err(Error::CriDeadline { call: name, seconds: wait.as_secs() }),
    }
}

fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Cri { source, .. } if source.code() == Code::NotFound)
}

fn gone_is_done<T>(answer: Result<T, Error>) -> Result<(), Error> {
    match answer {
        Err(error) if !is_not_found(&error) => Err(error),
        _ => Ok(()),
    }
}

fn gone_is_none<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Err(error) if is_not_found(&error) => Ok(None),
        other => other.map(Some),
    }
}
