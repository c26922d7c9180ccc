//! The type table as strategic merge patches see it.

use ambit_apply::{FieldStrategy, ListMerge, MergeStrategy};
use ambit_schema::Schema;

/// How the fields of a type merge.
pub(crate) struct Strategy<'a>(pub(crate) &'a Schema);

impl MergeStrategy for Strategy<'_> {
    fn field(&self, name: &str) -> Option<FieldStrategy<'_>> {
        let field = self.0.field(name)?;
        let list = match (field.patch.merge, &field.patch.merge_key) {
            (true, Some(key)) => ListMerge::ByKey(key),
            (true, None) => ListMerge::ByValue,
            (false, _) => ListMerge::Replace,
        };
        let inner: Box<dyn MergeStrategy + '_> = Box::new(Strategy(field.item().unwrap_or(field)));
        Some(FieldStrategy { list, replace: field.patch.replace, inner })
    }
}
