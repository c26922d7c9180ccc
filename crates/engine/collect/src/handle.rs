//! Typed names of what is in a graph. Use them only with the graph that gave them.

use std::marker::PhantomData;

/// Names a node; never used twice in a graph.
pub(crate) type Id = u64;

/// Names a collection of a graph.
pub struct Collection<K, V> {
    pub(crate) node: Id,
    types: PhantomData<fn() -> (K, V)>,
}

/// Names a collection that is written from outside.
pub struct Input<K, V>(pub(crate) Collection<K, V>);

/// Names a collection to which sources can be connected later.
pub struct Union<K, V>(pub(crate) Collection<K, V>);

/// Names an index with keys `I` over a collection.
pub struct Index<I, K, V> {
    pub(crate) of: Collection<K, V>,
    pub(crate) index: usize,
    types: PhantomData<fn() -> I>,
}

/// Names an index of values by the labels (`T`) they carry.
pub struct LabelIndex<T, K, V> {
    pub(crate) of: Collection<K, V>,
    pub(crate) index: usize,
    types: PhantomData<fn() -> T>,
}

/// Names an index of values by the labels (`T`) they select.
pub struct SelectorIndex<T, K, V> {
    pub(crate) of: Collection<K, V>,
    pub(crate) index: usize,
    types: PhantomData<fn() -> T>,
}

impl<K, V> Collection<K, V> {
    pub(crate) fn at(node: Id) -> Self {
        Self { node, types: PhantomData }
    }
}

impl<K, V> Input<K, V> {
    /// The collection to read it as.
    pub fn collection(self) -> Collection<K, V> {
        self.0
    }
}

impl<K, V> Union<K, V> {
    /// Its place, for [`crate::Graph::open`].
    pub fn place(self) -> u64 {
        self.0.node
    }

    /// The collection to read it as.
    pub fn collection(self) -> Collection<K, V> {
        self.0
    }
}

macro_rules! index_handle {
    ($name:ident) => {
        impl<I, K, V> $name<I, K, V> {
            pub(crate) fn at(of: Collection<K, V>, index: usize) -> Self {
                Self { of, index, types: PhantomData }
            }
        }
        impl<I, K, V> Clone for $name<I, K, V> {
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<I, K, V> Copy for $name<I, K, V> {}
    };
}
index_handle!(Index);
index_handle!(LabelIndex);
index_handle!(SelectorIndex);

macro_rules! collection_handle {
    ($name:ident) => {
        impl<K, V> Clone for $name<K, V> {
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<K, V> Copy for $name<K, V> {}
    };
}
collection_handle!(Collection);
collection_handle!(Input);
collection_handle!(Union);
