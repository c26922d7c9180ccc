//! What an applied configuration must be beyond its schema: its fields are declared and its items can be told apart.
//! Source: structured-merge-diff `typed/validate.go`, its texts too.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use super::element::{PathElement, spell_path};
use super::value_type::{ListType, Typed, ValueType};

/// What is wrong with an applied configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFault {
    /// The field, as conflict messages spell it.
    pub path: String,
    /// What is wrong there.
    pub what: String,
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => out.write_str(&self.what),
            path => write!(out, "{path}: {}", self.what),
        }
    }
}

/// Faults reported at most: one request cannot make its answer as long as it likes.
const FAULTS_MAX: usize = 50;

/// All that is wrong with the configuration.
pub(super) fn validate<T: ValueType>(config: &Value, value_type: &T) -> Vec<ConfigFault> {
    let mut walk = Walk { path: Vec::new(), faults: Vec::new() };
    walk.visit(config, &Typed::of(value_type));
    walk.faults
}

struct Walk {
    path: Vec<PathElement>,
    faults: Vec<ConfigFault>,
}

impl Walk {
    fn visit<T: ValueType>(&mut self, value: &Value, value_type: &Typed<T>) {
        match value {
            Value::Object(map) => {
                for (name, inner) in map {
                    self.visit_field(name, inner, value_type);
                }
            }
            Value::Array(items) => self.visit_items(items, value_type),
            _ => {}
        }
    }

    fn visit_field<T: ValueType>(&mut self, name: &str, value: &Value, value_type: &Typed<T>) {
        self.path.push(PathElement::Field(name.to_owned()));
        let inner = value_type.field(name);
        if inner.0.is_none() {
            self.fault("field not declared in schema".to_owned());
        } else {
            self.visit(value, &inner);
        }
        self.path.pop();
    }

    fn visit_items<T: ValueType>(&mut self, items: &[Value], value_type: &Typed<T>) {
        let item_type = value_type.item();
        let is_atomic = value_type.list() == ListType::Atomic;
        let mut seen = BTreeSet::new();
        for (index, item) in items.iter().enumerate() {
            let place = PathElement::Index(i64::try_from(index).unwrap_or(i64::MAX));
            let element = match value_type.element_of(item) {
                _ if is_atomic => place,
                Ok(element) => element,
                Err(what) => return self.fault(format!("element {index}: {what}")),
            };
            if !seen.insert(element.clone()) {
                self.fault(format!("duplicate entries for key {element}"));
            }
            self.path.push(element);
            self.visit(item, &item_type);
            self.path.pop();
        }
    }

    fn fault(&mut self, what: String) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(ConfigFault { path: spell_path(&self.path), what });
        }
    }
}
