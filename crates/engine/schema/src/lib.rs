//! The type table of every kind and all it drives: decoding, pruning, defaulting, validation, tables and OpenAPI.
//! It never holds code for a single kind beyond printer columns, defaults and cross-field checks.
