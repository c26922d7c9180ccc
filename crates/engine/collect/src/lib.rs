//! Derived collections: keyed, indexed, dependency-tracked, equality-suppressed and batch-driven.
//! It never knows a word of Kubernetes.
