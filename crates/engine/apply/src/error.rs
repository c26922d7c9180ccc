//! Why a patch could not be applied.

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
