//! A layer around a deserializer that hands on only the fields that are kept. It works for every type, as none sees a
//! field that is passed over.

use super::{Fate, Fields, Keep};
use serde::de::value::CowStrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error, IgnoredAny, MapAccess, SeqAccess,
    Visitor,
};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// Decodes a `K` of the fields that are kept.
pub(crate) struct Kept<'a, K> {
    keep: &'a Keep,
    kind: PhantomData<K>,
}

impl<K> Clone for Kept<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Kept<'_, K> {}

impl<'a, K> Kept<'a, K> {
    pub(crate) fn new(keep: &'a Keep) -> Self {
        Self { keep, kind: PhantomData }
    }
}

impl<'de, K: DeserializeOwned> DeserializeSeed<'de> for Kept<'_, K> {
    type Value = K;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<K, D::Error> {
        K::deserialize(Filtered { inner, fields: &self.keep.0 })
    }
}

/// `inner`, of whose maps only some fields are seen.
struct Filtered<'a, T> {
    inner: T,
    fields: &'a Fields,
}

/// Methods that hand on the call with a visitor that sees some fields only.
macro_rules! filter {
    ($($method:ident($($argument:ident: $type:ty),*)),* $(,)?) => {
        $(fn $method<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method($($argument,)* Filtered { inner: visitor, fields: self.fields })
        })*
    };
}

/// Methods for what has no fields.
macro_rules! pass_on {
    ($($method:ident($($argument:ident: $type:ty),*)),* $(,)?) => {
        $(fn $method<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method($($argument,)* visitor)
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Filtered<'_, D> {
    type Error = D::Error;

    filter! {
        deserialize_any(),
        deserialize_option(),
        deserialize_newtype_struct(name: &'static str),
        deserialize_seq(),
        deserialize_tuple(len: usize),
        deserialize_tuple_struct(name: &'static str, len: usize),
        deserialize_map(),
        deserialize_struct(name: &'static str, fields: &'static [&'static str]),
    }

    pass_on! {
        deserialize_bool(), deserialize_i8(), deserialize_i16(), deserialize_i32(), deserialize_i64(),
        deserialize_i128(), deserialize_u8(), deserialize_u16(), deserialize_u32(), deserialize_u64(),
        deserialize_u128(), deserialize_f32(), deserialize_f64(), deserialize_char(), deserialize_str(),
        deserialize_string(), deserialize_bytes(), deserialize_byte_buf(), deserialize_unit(),
        deserialize_unit_struct(name: &'static str), deserialize_identifier(), deserialize_ignored_any(),
        deserialize_enum(name: &'static str, variants: &'static [&'static str]),
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// Visits of what has no fields.
macro_rules! pass_visits {
    ($($method:ident: $type:ty),* $(,)?) => {
        $(fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$method(value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Filtered<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    pass_visits! {
        visit_bool: bool, visit_i8: i8, visit_i16: i16, visit_i32: i32, visit_i64: i64, visit_i128: i128,
        visit_u8: u8, visit_u16: u16, visit_u32: u32, visit_u64: u64, visit_u128: u128, visit_f32: f32,
        visit_f64: f64, visit_char: char, visit_str: &str, visit_borrowed_str: &'de str, visit_string: String,
        visit_bytes: &[u8], visit_borrowed_bytes: &'de [u8], visit_byte_buf: Vec<u8>,
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Filtered { inner, fields: self.fields })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.inner.visit_newtype_struct(Filtered { inner, fields: self.fields })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(Filtered { inner, fields: self.fields })
    }

    fn visit_map<A: MapAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(FilteredMap { inner, fields: self.fields, within: None })
    }

    fn visit_enum<A: EnumAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(inner)
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Filtered<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Filtered { inner, fields: self.fields })
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Filtered<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.inner.next_element_seed(Filtered { inner: seed, fields: self.fields })
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

/// A map of which some fields are seen.
struct FilteredMap<'a, A> {
    inner: A,
    fields: &'a Fields,
    /// What is seen within the value that comes next; none when it is seen whole.
    within: Option<&'a Fields>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for FilteredMap<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        while let Some(name) = self.inner.next_key_seed(Name)? {
            self.within = match self.fields.fate(&name) {
                Fate::Dropped => {
                    self.inner.next_value::<IgnoredAny>()?;
                    continue;
                }
                Fate::Kept => None,
                Fate::Partly(fields) => Some(fields),
            };
            return seed.deserialize(CowStrDeserializer::new(name)).map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        match self.within {
            Some(fields) => self.inner.next_value_seed(Filtered { inner: seed, fields }),
            None => self.inner.next_value_seed(seed),
        }
    }
}

/// Reads a field's name, without a copy where the text allows it.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<Self::Value, D::Error> {
        inner.deserialize_identifier(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_borrowed_str<E: Error>(self, name: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(name.to_owned()))
    }

    fn visit_string<E: Error>(self, name: String) -> Result<Self::Value, E> {
        Ok(Cow::Owned(name))
    }
}
