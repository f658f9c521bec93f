//! Lists, whole and in parts, and what they change.

use super::*;

#[test]
fn a_list_that_is_told_in_parts_holds_when_it_is_whole() {
    let mut model = Model::new();
    model.expect(SOURCE);
    let other = changed(SERVICE, "name: web", "name: other");
    model.change(SOURCE, Change::Begin);
    model.change(SOURCE, Change::Part(vec![object(SERVICE)]));
    assert!(!model.is_complete() && model.services().next().is_none());
    // It breaks off, and begins anew.
    model.change(SOURCE, Change::Begin);
    model.change(SOURCE, Change::Part(vec![other]));
    model.change(SOURCE, Change::Replace(List { objects: vec![object(SLICE)], ..List::default() }));
    assert_eq!(model.services().map(|service| service.name.as_str()).collect::<Vec<_>>(), ["other"]);
    assert!(model.is_complete() && model.slices().next().is_some());
    assert_eq!(model.take_changes().services.len(), 2);
    // What is listed again as it was has not changed.
    model.change(SOURCE, Change::Begin);
    model.change(SOURCE, Change::Part(vec![object(SLICE), changed(SERVICE, "name: web", "name: other")]));
    model.change(SOURCE, Change::Replace(List::default()));
    assert_eq!(model.take_changes(), Changes::default());
    model.change(SOURCE, Change::Replace(List::default()));
    assert_eq!((model.take_changes().services.len(), model.services().count()), (2, 0));
}
