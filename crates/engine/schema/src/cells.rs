//! Tables as kubectl shows them: columns and cells per kind.

use serde_json::Value;

use crate::catalog::ResourceType;

/// A column of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// The heading.
    pub name: String,
    /// The type of its cells: `string`, `integer`, `number`, `boolean` or `date`.
    pub type_: String,
    /// A format of the type; `name` marks the name of the object.
    pub format: String,
    /// What the column shows.
    pub description: String,
    /// 0 for columns always shown, more for those of wide output.
    pub priority: i32,
}

impl ResourceType {
    /// The columns of a table of such objects.
    #[must_use]
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The cells of an object, one per column.
    #[must_use]
    pub fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let _ = now;
        vec![object["metadata"]["name"].clone(), object["metadata"]["creationTimestamp"].clone()]
    }
}

fn column(name: &str, type_: &str, format: &str) -> Column {
    Column {
        name: name.to_owned(),
        type_: type_.to_owned(),
        format: format.to_owned(),
        description: String::new(),
        priority: 0,
    }
}

pub(crate) fn name_column() -> Column {
    column("Name", "string", "name")
}

pub(crate) fn age_column() -> Column {
    column("Age", "string", "")
}

pub(crate) fn built_in_columns(_group: &str, _kind: &str) -> Vec<Column> {
    vec![name_column(), age_column()]
}
