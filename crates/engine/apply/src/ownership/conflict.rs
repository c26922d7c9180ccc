//! Fields that an apply would take from others. Source: apimachinery `managedfields/internal/conflict.go`, its texts
//! too: clients print them.

use std::fmt;

use super::element::{PathElement, spell_path};
use super::managers::{Operation, Owner};

/// A field that an apply would change though another manager owns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Who owns it.
    pub owner: Owner,
    /// The field.
    pub path: Vec<PathElement>,
}

impl Conflict {
    /// The message of the cause: who the conflict is with.
    #[must_use]
    pub fn message(&self) -> String {
        format!("conflict with {}", spell_owner(&self.owner))
    }

    /// The field of the cause: `.spec.containers[name="x"].image`.
    #[must_use]
    pub fn field(&self) -> String {
        spell_path(&self.path)
    }
}

/// All conflicts of an apply, by owner. There is always one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflicts(pub Vec<Conflict>);

/// The message of the answer to the client.
impl fmt::Display for Conflicts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [conflict] = self.0.as_slice() {
            return write!(out, "Apply failed with 1 conflict: {}: {}", conflict.message(), conflict.field());
        }
        let mut lines = Vec::new();
        let mut last = None;
        for conflict in &self.0 {
            if last != Some(&conflict.owner) {
                lines.push(format!("conflicts with {}:", spell_owner(&conflict.owner)));
                last = Some(&conflict.owner);
            }
            lines.push(format!("- {}", conflict.field()));
        }
        write!(out, "Apply failed with {} conflicts: {}", self.0.len(), lines.join("\n"))
    }
}

impl std::error::Error for Conflicts {}

fn spell_owner(owner: &Owner) -> String {
    let mut text = format!("{:?}", owner.manager);
    if !owner.subresource.is_empty() {
        text.push_str(&format!(" with subresource {:?}", owner.subresource));
    }
    if owner.operation == Operation::Update {
        text.push_str(&format!(" using {}", owner.api_version));
    }
    text
}
