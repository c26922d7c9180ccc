//! CNI configuration, result and error documents, and the edit and undo of configuration lists.
//! It never touches a file.

pub mod choice;
pub mod conf;
pub mod event;
pub mod list;
pub mod result;
pub mod rivalry;
mod scan;

pub use choice::{File, Place, Plan, Step, Undo, Wanted, plan, plan_undo};
pub use conf::{Arguments, ErrorObject, NetConf, Version, code};
pub use event::{Answer, Event};
pub use list::{Entry, ListError, insert, remove, render};
