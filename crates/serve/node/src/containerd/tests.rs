//! The real containerd, in mount and network namespaces of the test's own.

use super::{Programs, Runtime, clean_up};
use crate::cri::{Cri, label};
use crate::images::{self, PAUSE_IMAGE};
use crate::layout::Layout;
use crate::settings::Settings;
use crate::testing;
use ambit_proto::cri::{LinuxPodSandboxConfig, PodSandboxConfig, PodSandboxMetadata};
use std::path::Path;

fn sandbox(layout: &Layout) -> PodSandboxConfig {
    let uid = "0a1b2c3d-0000-1111-2222-333344445555".to_owned();
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: "web".into(),
            uid: uid.clone(),
            namespace: "demo".into(),
            attempt: 0,
        }),
        labels: [(label::POD_UID.to_owned(), uid.clone())].into(),
        log_directory: layout.logs().display().to_string(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: layout.pod_cgroup("BestEffort", &uid),
            ..LinuxPodSandboxConfig::default()
        }),
        ..PodSandboxConfig::default()
    }
}

async fn start(settings: &Settings) -> (Layout, Cri, Runtime) {
    let layout = Layout::new(&settings.state_dir).unwrap();
    let programs = Programs::find().unwrap();
    crate::cni::install(settings, &layout).unwrap();
    let cri = Cri::new(&layout.socket());
    let runtime = Runtime::start(layout.clone(), programs.clone(), PAUSE_IMAGE, &cri).await.unwrap();
    images::import_binary(&programs, &layout.socket(), &settings.pause_binary, PAUSE_IMAGE).await.unwrap();
    images::wait_for_image(&cri, PAUSE_IMAGE).await.unwrap();
    testing::until("the network is ready", async || cri.not_ready().await.is_ok_and(|why| why.is_none()))
        .await;
    (layout, cri, runtime)
}

#[test]
fn a_sandbox_outlives_its_runtime_and_the_cleanup_leaves_nothing() {
    testing::in_own_namespaces(
        "containerd::tests::a_sandbox_outlives_its_runtime_and_the_cleanup_leaves_nothing",
        async {
            let dir = testing::short_dir();
            let settings = testing::settings(dir.path());
            let (layout, cri, runtime) = start(&settings).await;
            let id = cri.run_sandbox(sandbox(&layout)).await.unwrap();
            let ip = cri.sandbox(&id).await.unwrap().unwrap().network.unwrap().ip;
            assert!(ip.starts_with("10.244."), "{ip}");
            let image = cri.image(PAUSE_IMAGE).await.unwrap().unwrap();
            assert_eq!(image.repo_tags, [PAUSE_IMAGE]);

            // A runtime that is killed, with the node that started it, is found and replaced.
            drop(runtime);
            let (_, cri, mut runtime) = start(&settings).await;
            let found = cri.sandboxes(None).await.unwrap();
            assert_eq!(
                found.iter().map(|s| (s.id.as_str(), s.state)).collect::<Vec<_>>(),
                [(id.as_str(), 0)]
            );

            // The sandbox is left to the cleanup, as after a crash.
            assert!(!ambit_linux::mount::mount_points_below(dir.path()).unwrap().is_empty());
            runtime.stop().await;
            clean_up(&layout).await.unwrap();
            assert!(ambit_linux::mount::mount_points_below(dir.path()).unwrap().is_empty());
            assert!(!layout.run_dir().exists());
            assert_eq!(super::cleanup::cgroup_dirs(&layout.cgroup()), Vec::<std::path::PathBuf>::new());
            assert_eq!(testing::processes_naming(dir.path()), Vec::<String>::new());
            let results = std::fs::read_dir("/var/lib/cni/results").into_iter().flatten().flatten();
            let names: Vec<_> = results.map(|entry| entry.file_name().into_string().unwrap()).collect();
            assert!(names.iter().all(|name| !name.contains(&id)), "{names:?}");
        },
    );
}

#[test]
fn a_runtime_that_cannot_start_shows_why() {
    testing::in_own_namespaces("containerd::tests::a_runtime_that_cannot_start_shows_why", async {
        let dir = testing::short_dir();
        let layout = Layout::new(dir.path()).unwrap();
        std::fs::create_dir_all(layout.run_dir()).unwrap();
        // A directory in the place of its socket.
        std::fs::create_dir_all(layout.socket().join("x")).unwrap();
        let cri = Cri::new(&layout.socket());
        let programs = Programs::find().unwrap();
        let error =
            Runtime::start(layout.clone(), programs, PAUSE_IMAGE, &cri).await.unwrap_err().to_string();
        let log = layout.runtime_log().display().to_string();
        assert!(error.contains("containerd did not start") && error.contains(&log), "{error}");
        assert!(error.contains("is a directory"), "{error}");
        clean_up(&layout).await.unwrap();
        assert!(Path::new(&log).exists());
    });
}
