//! The L4 node proxy: per-pod listeners, HBONE, connection pool and telemetry.
//! It never decides who may talk: decide/traffic does.
