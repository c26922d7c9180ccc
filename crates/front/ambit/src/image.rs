//! `ambit image`: images from single binaries, and their import.

use crate::cli::ImageAction;
use anyhow::{Context as _, Result};

/// Packs or imports.
///
/// # Errors
/// A file cannot be read or written, or the running cluster refuses the archive.
#[expect(clippy::print_stdout, reason = "the names are what a script reads on")]
pub(crate) async fn run(action: ImageAction) -> Result<()> {
    match action {
        ImageAction::Pack { binary, name, output } => {
            let archive = ambit_node::scratch_image(&binary, &name)?;
            std::fs::write(&output, archive).with_context(|| format!("cannot write {}", output.display()))?;
            println!("{name} -> {}", output.display());
        }
        ImageAction::Import { file, state } => {
            let names = ambit_node::import_image(&state.join("node"), &file).await?;
            println!("imported {}", names.join(", "));
        }
    }
    Ok(())
}
