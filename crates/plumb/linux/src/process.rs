//! Reads processes from /proc.
