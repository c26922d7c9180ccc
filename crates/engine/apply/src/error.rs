//! Why a patch could not be applied.

use crate::ownership::{ConfigFault, Conflicts};

/// Why a patch could not be applied. The comment of each variant names the HTTP code that upstream answers.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// The patch is not of the form its media type demands; 400.
    #[error("the patch is malformed: {0}")]
    Malformed(String),
    /// A JSON patch has too many operations; 413.
    #[error("the allowed maximum operations in a JSON patch is {max}, got {count}")]
    TooManyOperations {
        /// Operations in the patch.
        count: usize,
        /// Operations allowed.
        max: usize,
    },
    /// A JSON patch copies too much or nests too deeply; 413.
    #[error("operation {index} of the patch would make the object too large: {what}")]
    TooLarge {
        /// The operation, counted from 0.
        index: usize,
        /// The bound it would break.
        what: &'static str,
    },
    /// A `test` operation of a JSON patch did not hold; 422.
    #[error("operation {index} of the patch, a test of \"{path}\", failed: the value is a different one")]
    TestFailed {
        /// The operation, counted from 0.
        index: usize,
        /// The value it tested.
        path: String,
    },
    /// An operation of a JSON patch does not fit the object; 422.
    #[error("operation {index} of the patch does not fit the object at \"{path}\": {what}")]
    Unfitting {
        /// The operation, counted from 0.
        index: usize,
        /// Where it should apply.
        path: String,
        /// What did not fit.
        what: String,
    },
    /// A strategic merge patch contradicts itself or the type of the object; 400.
    #[error("the strategic merge patch is invalid at \"{path}\": {what}")]
    Strategic {
        /// The field.
        path: String,
        /// What is wrong.
        what: String,
    },
}

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
