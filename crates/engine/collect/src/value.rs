//! What can be kept in collections.

use std::fmt::Debug;

/// What keys must be capable of.
pub trait Key: Ord + Clone + Debug + Send + Sync + 'static {}
impl<T: Ord + Clone + Debug + Send + Sync + 'static> Key for T {}

/// What values must be capable of.
pub trait Value: PartialEq + Send + Sync + 'static {}
impl<T: PartialEq + Send + Sync + 'static> Value for T {}
