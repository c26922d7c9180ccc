//! Laws that hold of any objects.

use proptest::prelude::{Just, Strategy, any, prop, prop_oneof, proptest};
use serde_json::{Map, Value, json};

use super::{Story, thing};
use crate::ownership::{FieldSet, OnConflict, compare};

/// Each of the fields, or not.
fn some_of(
    fields: Vec<(&'static str, proptest::strategy::BoxedStrategy<Value>)>,
) -> impl Strategy<Value = Value> {
    let (names, values): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
    let values: Vec<_> = values.into_iter().map(prop::option::of).collect();
    values.prop_map(move |values| {
        let given = names.iter().zip(values).filter_map(|(name, value)| Some(((*name).to_owned(), value?)));
        Value::Object(given.collect())
    })
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![(0..3_u8).prop_map(|number| json!(number)), "[ab]".prop_map(|text| json!(text))]
}

fn map_of(values: impl Strategy<Value = Value> + 'static) -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[abc]", values, 0..3)
        .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>()))
}

fn keyed(
    names: &'static str,
    fields: impl Strategy<Value = Value> + 'static,
    key: &'static str,
) -> impl Strategy<Value = Value> {
    prop::collection::btree_map(names, fields, 1..3).prop_map(move |items| {
        let item = |(name, mut item): (String, Value)| {
            item[key] = json!(name);
            item
        };
        items.into_iter().map(item).collect()
    })
}

/// Things with everything in them that types know; nothing looks alike, and objects and lists are not empty: that an
/// empty one is owned is told elsewhere.
fn things() -> impl Strategy<Value = Value> {
    let full = |value: &Value| value.as_object().is_none_or(|map| !map.is_empty());
    let container = some_of(vec![
        ("image", scalar().boxed()),
        ("args", prop::collection::vec(scalar(), 1..3).prop_map(Value::from).boxed()),
        ("ports", keyed("[12]", some_of(vec![("name", scalar().boxed())]), "port").boxed()),
    ]);
    let spec = some_of(vec![
        ("replicas", scalar().boxed()),
        ("selector", map_of(scalar()).boxed()),
        ("template", scalar().prop_map(|mode| json!({"mode": mode})).boxed()),
        ("containers", keyed("[abc]", container, "name").boxed()),
        (
            "free",
            map_of(prop_oneof![scalar(), map_of(scalar()).prop_filter("full", full)])
                .prop_filter("full", full)
                .boxed(),
        ),
        ("nested", map_of(map_of(scalar()).prop_filter("full", full)).prop_filter("full", full).boxed()),
    ]);
    let finalizers = prop::collection::btree_set("[abc]", 1..3)
        .prop_map(|names| Value::from(names.into_iter().collect::<Vec<_>>()))
        .prop_shuffle_items();
    let metadata = some_of(vec![
        ("labels", map_of(scalar()).prop_filter("full", full).boxed()),
        ("finalizers", finalizers.boxed()),
    ]);
    some_of(vec![
        ("metadata", metadata.prop_filter("full", full).boxed()),
        ("spec", spec.prop_filter("full", full).boxed()),
    ])
}

trait ShuffleItems: Strategy<Value = Value> + Sized {
    /// The list with its items in some order.
    fn prop_shuffle_items(self) -> impl Strategy<Value = Value> {
        self.prop_flat_map(|list| match list {
            Value::Array(items) => Just(items).prop_shuffle().prop_map(Value::Array).boxed(),
            other => Just(other).boxed(),
        })
    }
}

impl<S: Strategy<Value = Value>> ShuffleItems for S {}

fn sets() -> impl Strategy<Value = FieldSet> {
    prop::collection::vec(things(), 0..3).prop_map(|things| {
        things.iter().fold(FieldSet::default(), |set, object| set.union(&FieldSet::of(object, &thing())))
    })
}

proptest! {
    #[test]
    fn stored_sets_are_read_back(set in sets()) {
        let stored = set.to_fields_v1();
        assert_eq!(FieldSet::from_fields_v1(&stored).unwrap(), set);
    }

    #[test]
    fn sets_combine_as_sets_do(one in sets(), two in sets(), three in sets()) {
        let union = one.clone().union(&two);
        assert_eq!(union, two.clone().union(&one));
        assert_eq!(one.intersection(&two), two.intersection(&one));
        assert_eq!(one.difference(&two).union(&one.intersection(&two)), one);
        assert_eq!(union.difference(&two), one.difference(&two));
        assert!(one.difference(&one).is_empty());
        assert_eq!(union.len() + one.intersection(&two).len(), one.len() + two.len());
        assert_eq!(one.intersection(&two.clone().union(&three)), one.intersection(&two).union(&one.intersection(&three)));
        assert_eq!(one.without(&two).difference(&one.difference(&two)), FieldSet::default());
        for path in union.paths() {
            assert!(union.contains(&path));
            assert_eq!(one.difference(&two).contains(&path), one.contains(&path) && !two.contains(&path));
        }
    }

    #[test]
    fn comparisons_are_exact(old in things(), new in things()) {
        let there = compare(&old, &new, &thing());
        let back = compare(&new, &old, &thing());
        assert_eq!((&there.added, &there.modified, &there.removed), (&back.removed, &back.modified, &back.added));
        assert!(there.added.intersection(&there.removed).is_empty());
        if there.is_empty() {
            assert_eq!(FieldSet::of(&old, &thing()), FieldSet::of(&new, &thing()));
        }
        assert!(compare(&new, &new.clone(), &thing()).is_empty());
        let set = FieldSet::of(&new, &thing());
        let untouched = set.difference(&there.added).difference(&there.modified);
        assert!(untouched.difference(&FieldSet::of(&old, &thing())).is_empty(), "unchanged fields were there before");
    }

    #[test]
    fn a_second_apply_changes_nothing(live in things(), config in things()) {
        let mut story = Story::default().update("u", live).force("m", &config);
        let again = story.try_apply("m", &config, OnConflict::Refuse).unwrap();
        assert!(!again.changed, "{:?}", again.object);
        assert_eq!(again.managers, story.managers);
    }

    /// All that is applied is in the object, and what stays besides is owned by others or was never applied.
    #[test]
    fn an_apply_gives_what_was_asked_for(live in things(), before in things(), config in things()) {
        let story = Story::default().update("u", live.clone()).force("m", &before).force("m", &config);
        let object = story.object.unwrap();
        let set = FieldSet::of(&object, &thing());
        let wanted = FieldSet::of(&config, &thing());
        assert!(wanted.difference(&set).is_empty(), "{object}");
        let changes = compare(&config, &object, &thing());
        assert!(changes.modified.intersection(&wanted).is_empty(), "{object}");
        let given_up = FieldSet::of(&before, &thing()).difference(&wanted).difference(&FieldSet::of(&live, &thing()));
        assert!(given_up.leaves().intersection(&set).is_empty(), "{object}");
    }

    /// Who applies and then applies nothing leaves what was there before, as far as it has not changed it.
    #[test]
    fn applying_nothing_takes_back_what_only_the_manager_owned(other in things(), config in things()) {
        let story = Story::default().apply("other", &other);
        let before = story.object.clone().unwrap();
        let mut applied = story.clone();
        let Ok(outcome) = applied.try_apply("m", &config, OnConflict::Refuse) else { return Ok(()) };
        let after = story.take(outcome).apply("m", &json!({}));
        let changes = compare(&before, after.object.as_ref().unwrap(), &thing());
        assert!(changes.is_empty(), "{changes:?}");
        assert_eq!(after.managers.entries().len(), usize::from(!after.managers.is_empty()));
    }

    #[test]
    fn managers_that_share_nothing_commute(one in things(), two in things()) {
        let mut first = Story::default().apply("one", &one);
        let mut second = Story::default().apply("two", &two);
        let there = first.try_apply("two", &two, OnConflict::Refuse);
        let back = second.try_apply("one", &one, OnConflict::Refuse);
        assert_eq!(there.is_ok(), back.is_ok());
        let (Ok(there), Ok(back)) = (there, back) else { return Ok(()) };
        // The order of items is that in which they came.
        assert!(compare(&there.object, &back.object, &thing()).is_empty());
        let fields = |managers: &super::Managers| {
            let mut fields: Vec<_> = managers.entries().iter().map(|owned| (owned.owner.clone(), owned.fields.clone())).collect();
            fields.sort_by(|one, two| one.0.cmp(&two.0));
            fields
        };
        assert_eq!(fields(&there.managers), fields(&back.managers));
    }

    #[test]
    fn any_stored_set_is_answered(steps in prop::collection::btree_map(".{0,8}", any::<u8>(), 0..6)) {
        let stored = Value::Object(steps.into_iter().map(|(step, value)| {
            (step, if value % 8 == 0 { json!(value) } else { json!({"f:a": {}}) })
        }).collect());
        if let Ok(set) = FieldSet::from_fields_v1(&stored) {
            assert_eq!(FieldSet::from_fields_v1(&set.to_fields_v1()).unwrap(), set);
        }
    }
}
