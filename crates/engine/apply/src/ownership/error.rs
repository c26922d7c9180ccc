//! Why an apply or a list of owners is refused.

use super::conflict::Conflicts;
use super::validate::ConfigFault;

/// Why a configuration could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The configuration does not fit its type.
    #[error("{}", list_faults(.0))]
    Config(Vec<ConfigFault>),
    /// Others own fields that it changes; 409.
    #[error(transparent)]
    Conflict(#[from] Conflicts),
}

/// One fault on a line of its own, as upstream lists them.
fn list_faults(faults: &[ConfigFault]) -> String {
    match faults {
        [fault] => fault.to_string(),
        faults => faults.iter().fold("errors:".to_owned(), |text, fault| format!("{text}\n  {fault}")),
    }
}

/// Why a list of owners could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ManagersError {
    /// It is no list.
    #[error("metadata.managedFields must be a list")]
    NoList,
    /// An entry is not of the one known form.
    #[error("metadata.managedFields[{index}]: {what}")]
    Entry {
        /// The entry, counted from 0.
        index: usize,
        /// What is wrong with it.
        what: String,
    },
    /// A field set is malformed.
    #[error("the fieldsV1 of metadata.managedFields has the step {step}: {what}")]
    FieldsV1 {
        /// The step.
        step: String,
        /// What is wrong with it.
        what: String,
    },
}
