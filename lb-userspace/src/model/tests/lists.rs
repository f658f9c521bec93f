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
    assert_eq!(model.services().map(|service| &*service.name).collect::<Vec<_>>(), ["other"]);
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

#[test]
fn what_is_kept_has_no_room_for_more_and_names_are_kept_once() {
    let plain = |name: &str| {
        let yaml = SERVICE.replacen("name: web", &format!("name: {name}"), 1);
        object(&yaml.replacen("    bpvs.io/weights", "    other", 1))
    };
    let slice = |name: &str| changed(SLICE, "name: web-1", &format!("name: {name}"));
    let model = model([plain("a"), plain("b"), slice("a-1"), slice("b-1")]);
    let [a, b] = model.slices().collect::<Vec<_>>()[..] else { panic!("two slices") };
    for slice in [a, b] {
        assert_eq!((slice.endpoints.len(), slice.endpoints.capacity()), (2, 2));
        assert_eq!((slice.ports.len(), slice.ports.capacity()), (2, 2));
    }
    let names = |slice: &EndpointSlice| {
        let Endpoint { node, zone, .. } = slice.endpoints[0].clone();
        [slice.namespace.clone(), slice.ports[1].name.clone(), node.unwrap(), zone.unwrap()]
    };
    assert!(names(a).iter().zip(&names(b)).all(|(a, b)| Arc::ptr_eq(a, b)));
    let [a, b] = model.services().collect::<Vec<_>>()[..] else { panic!("two Services") };
    assert_eq!((a.addresses.len(), a.addresses.capacity()), (2, 2));
    assert_eq!((a.ports.len(), a.ports.capacity()), (2, 2));
    assert!(Arc::ptr_eq(&a.exposure, &b.exposure));
}
