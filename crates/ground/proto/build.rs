//! Compiles the protocol files with protox, so that no protoc is needed.

/// The protocol files, each compiled into its package's module.
const FILES: [&str; 8] = [
    "workload.proto",
    "authorization.proto",
    "zds.proto",
    "ca.proto",
    "discovery.proto",
    "status.proto",
    "cri.proto",
    "etcd.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".")
        .emit_rerun_if_changed(false)
        .include_file("packages.rs")
        .compile_fds(descriptors)?;
    Ok(())
}
