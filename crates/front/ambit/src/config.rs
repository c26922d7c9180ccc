//! `ambit config`: checks and shows the mesh configuration.

use crate::cli::{self, ConfigAction, ConfigCheck, ConfigShow, ShownAs};
use ambit_api::core::v1::ConfigMap;
use ambit_control_plane::MeshConfigSources;
use ambit_mesh::config::{Decision, Document, Fault, Note, Scope, check_file, decide};
use anyhow::{Context as _, Result, bail};
use kube::api::Api;
use serde_json::{Value, json};
use std::io::Read as _;
use std::process::ExitCode;

/// Checks or shows. The exit code says whether there are faults.
///
/// # Errors
/// A file cannot be read, or the cluster does not answer.
pub(crate) async fn run(action: ConfigAction) -> Result<ExitCode> {
    match action {
        ConfigAction::Check(args) => check(&args),
        ConfigAction::Show(args) => show(&args).await,
    }
}

#[expect(clippy::print_stdout, reason = "the faults are what is asked for")]
fn check(args: &ConfigCheck) -> Result<ExitCode> {
    let (name, bytes) = read(&args.file)?;
    let (faults, notes) = check_file(&name, &bytes);
    match args.output {
        None => {
            faults.iter().for_each(|fault| println!("{name}:{fault}"));
            notes.iter().for_each(|note| println!("{name}:{note} (note)"));
            match (faults.len(), notes.len()) {
                (0, 0) => println!("{name}: no faults"),
                (0, notes) => println!("{name}: no faults, {notes} notes"),
                (faults, _) => {
                    eprintln!("{name}: {faults} faults: the last good configuration would stay in force")
                }
            }
        }
        Some(ShownAs::Json) => {
            let list = |all: &[Fault]| all.iter().map(shown).collect::<Vec<_>>();
            let report = json!({"file": name, "faults": list(&faults), "notes": list(&notes)});
            println!("{}", serde_json::to_string_pretty(&report)?);
        }
        Some(ShownAs::Yaml) => bail!("config check has -o json only"),
    }
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn shown(fault: &Note) -> Value {
    json!({"line": fault.place.line, "column": fault.place.column, "field": fault.path, "message": fault.message})
}

/// The name and the content of a file, or of the standard input.
fn read(file: &str) -> Result<(String, Vec<u8>)> {
    if file == "-" {
        let mut bytes = Vec::new();
        // One byte more than is read of a document, so that a longer one is seen to be too long.
        let limit = u64::try_from(ambit_mesh::config::CONFIG_BYTES_MAX)? + 1;
        std::io::stdin().take(limit).read_to_end(&mut bytes).context("cannot read the standard input")?;
        return Ok(("<stdin>".to_owned(), bytes));
    }
    Ok((file.to_owned(), std::fs::read(file).with_context(|| format!("cannot read {file}"))?))
}

#[expect(clippy::print_stdout, reason = "the configuration is what is asked for")]
async fn show(args: &ConfigShow) -> Result<ExitCode> {
    let sources = sources(&args.sources, &args.system_namespace)?;
    let client = crate::kubeconfig::connect(args.connection.kubeconfig.as_deref()).await?;
    let api: Api<ConfigMap> = Api::namespaced(client, &args.system_namespace);
    let get = async |name: String| {
        api.get_opt(&name).await.with_context(|| format!("cannot read ConfigMap {name}"))
    };
    let shared = match sources.shared_name() {
        Some(name) => get(name.to_owned()).await?,
        None => None,
    };
    let primary = get(sources.primary_name()).await?;
    let kept = get(sources.kept_name()).await?;
    let current = sources.documents(shared.as_ref(), primary.as_ref());
    let last_good = kept.as_ref().and_then(ambit_control_plane::kept_documents);
    let decision = decide(&current, last_good.as_deref());
    report(&decision, &current);
    let Some(config) = &decision.config else { return Ok(ExitCode::FAILURE) };
    if args.origin {
        let origins = config.origins();
        let width = origins.iter().map(|(path, _)| path.len()).max().unwrap_or(0).min(60);
        for (path, entry) in &origins {
            let field = path.split(['.', '[']).next().unwrap_or_default();
            let unused = if Scope::of(field) == Scope::NotUsedHere { "  (not used here)" } else { "" };
            println!("{path:width$}  {}  # {}{unused}", entry.item.to_json(), entry.origin);
        }
    } else {
        let shown = match args.output.unwrap_or(ShownAs::Yaml) {
            ShownAs::Json => serde_json::to_string_pretty(&config.to_json())? + "\n",
            ShownAs::Yaml => serde_saphyr::to_string(&config.to_json())?,
        };
        print!("{shown}");
    }
    Ok(if decision.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Where the control plane takes the mesh configuration from.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn sources(args: &cli::MeshConfig, namespace: &str) -> Result<MeshConfigSources> {
    Ok(MeshConfigSources {
        namespace: namespace.to_owned(),
        revision: args.revision.clone(),
        shared: args.shared.clone(),
        file: args.file.as_deref().map(read).transpose()?,
    })
}

/// What stands behind the configuration goes to the standard error, so that the configuration can be piped on.
fn report(decision: &Decision, current: &[Document]) {
    decision.faults.iter().for_each(|fault| eprintln!("{fault}"));
    match (&decision.config, decision.faults.is_empty()) {
        (Some(_), true) if current.is_empty() => eprintln!("no source sets anything: these are the defaults"),
        (Some(_), true) => {}
        (Some(_), false) => {
            eprintln!("the sources have faults: this is the last good configuration, which is in force")
        }
        (None, _) => {
            eprintln!("the sources have faults and there has been no good configuration: none is in force")
        }
    }
}
