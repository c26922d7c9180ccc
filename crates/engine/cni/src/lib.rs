//! CNI configuration, result and error documents, and the edit and undo of configuration lists.
//! It never touches a file.
