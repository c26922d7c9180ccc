//! The demo as a test: every promise is held on a cluster started by the program itself.

use ambit_cluster_tests::checks::Timing;
use ambit_cluster_tests::cluster::Programs;
use ambit_cluster_tests::demo::{Afterwards, Demo};
use ambit_cluster_tests::sandbox;
use std::path::Path;

/// INV-01 (captured or off the network), INV-02 (unknown is not allowed) and INV-06 (nothing left behind) on a whole
/// cluster.
#[test]
fn every_promise_of_the_demo_is_held() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let programs =
        std::env::var_os("AMBIT_PROGRAMS").map_or_else(|| root.join("target/programs-debug"), Into::into);
    let programs = Programs::find(Path::new(&programs)).unwrap_or_else(|e| panic!("{e:#}"));
    sandbox::enter().unwrap_or_else(|e| panic!("{e:#}"));
    let state = tempfile::Builder::new().prefix("ambit-test-").tempdir().unwrap();
    let demo = Demo {
        programs,
        examples: &root.join("examples/demo"),
        proxy: None,
        state: state.path(),
        timing: Timing::Eventually,
        afterwards: Afterwards::CleanUp,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let report = runtime.block_on(demo.run()).unwrap_or_else(|e| panic!("{e:#}"));
    assert_eq!((report.broken(), report.made()), (vec![], 11));
}
