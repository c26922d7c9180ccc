//! `ambit image`: images from single binaries, and their import.

use crate::cli::ImageAction;
use anyhow::{Context as _, Result, bail};
use std::path::Path;

/// Packs or imports.
///
/// # Errors
/// A file cannot be read or written, or the running cluster refuses the archive.
pub(crate) async fn run(action: ImageAction) -> Result<()> {
    match action {
        ImageAction::Pack { binary, name, output } => {
            let archive = ambit_node::scratch_image(&binary, &name, &entry_point(&binary)?)?;
            std::fs::write(&output, archive).with_context(|| format!("cannot write {}", output.display()))?;
            println!("{name} -> {}", output.display());
        }
        ImageAction::Import { file, state } => {
            ambit_node::import_image(&ambit_node::containerd_socket(&state.join("node")), &file).await?;
            println!("imported {}", file.display());
        }
    }
    Ok(())
}

/// The binary's place in the image: its own name in the root.
fn entry_point(binary: &Path) -> Result<String> {
    match binary.file_name().and_then(|n| n.to_str()) {
        Some(name) => Ok(format!("/{name}")),
        None => bail!("{} names no file", binary.display()),
    }
}
