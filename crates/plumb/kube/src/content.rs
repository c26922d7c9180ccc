//! Whether two objects say the same.

use serde::Serialize;
use serde_json::Value;

/// Whether both have the same fields, but for the type's name: items of a list come without it, those of a watch with it.
pub(crate) fn is_equal<K: Serialize>(a: &K, b: &K) -> bool {
    let (Ok(bytes_of_a), Ok(bytes_of_b)) = (serde_json::to_vec(a), serde_json::to_vec(b)) else {
        return false;
    };
    // Equal texts are the common case, and cheap to find.
    bytes_of_a == bytes_of_b || fields(a) == fields(b)
}

fn fields<K: Serialize>(object: &K) -> Option<Value> {
    let mut value = serde_json::to_value(object).ok()?;
    let fields = value.as_object_mut()?;
    fields.retain(|name, _| name != "apiVersion" && name != "kind");
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::api::DynamicObject;
    use serde_json::json;

    #[track_caller]
    fn check(a: &Value, b: &Value, expected: bool) {
        let object =
            |value: &Value| serde_json::from_value::<DynamicObject>(value.clone()).expect("an object");
        assert_eq!(is_equal(&object(a), &object(b)), expected);
    }

    #[test]
    fn objects_are_equal_whether_they_name_their_type_or_not() {
        let object = json!({"metadata": {"name": "a"}, "data": {"k": "1"}});
        let typed =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "1"}});
        let other = json!({"metadata": {"name": "a"}, "data": {"k": "2"}});
        check(&object, &object, true);
        check(&object, &typed, true);
        check(&object, &other, false);
        check(&typed, &other, false);
    }
}
