//! What changed, and when it happened.

use super::*;

#[test]
fn the_time_of_the_change_behind_a_slice_is_read_or_told_of() {
    let annotated = |time: &str| {
        let annotation = format!("annotations: {{endpoints.kubernetes.io/last-change-trigger-time: {time}, ");
        changed(SLICE, "annotations: {", &annotation)
    };
    for (time, expected) in [
        ("\"2026-01-31T09:30:00.123456789Z\"", Some("2026-01-31T09:30:00.123456789Z")),
        ("\"2026-01-31T11:30:00+02:00\"", Some("2026-01-31T09:30:00Z")),
        ("\"\"", None),
        ("yesterday", None),
        ("2026", None),
        ("\"2026-02-30T09:30:00Z\"", None),
        ("\"2026-01-31T09:30:00\"", None),
        ("[]", None),
    ] {
        let model = model([annotated(time)]);
        let trigger = slice(&model).trigger;
        assert_eq!(trigger.map(|trigger| trigger.at.to_string()).as_deref(), expected, "{time}");
        assert!(trigger.is_none_or(|trigger| trigger.v4));
        // A wrong one costs the measurement, and nothing else.
        assert_eq!((model.problems().len(), slice(&model).endpoints.len()), (usize::from(expected.is_none()), 2));
        assert_eq!(slice(&model).weight, Some(7));
    }
}

#[test]
fn what_a_change_made_another_is_told() {
    let mut model = Model::new();
    let (service, slice) = (object(SERVICE).key, object(SLICE).key);
    let list = |objects| Change::Replace(List { objects, ..List::default() });
    assert_eq!(model.change(SOURCE, list(vec![object(SERVICE), object(SLICE)])), [service.clone(), slice.clone()]);
    // The same again, in a list or alone.
    assert_eq!(model.change(SOURCE, list(vec![object(SERVICE), object(SLICE)])), []);
    assert_eq!(model.change(SOURCE, Change::Upsert(object(SLICE))), []);
    let other = || changed(SLICE, "10.1.0.2", "10.1.0.3");
    assert_eq!(model.change(SOURCE, Change::Upsert(other())), std::slice::from_ref(&slice));
    // What is wrong changes nothing that holds.
    assert_eq!(model.change(SOURCE, Change::Upsert(changed(SLICE, "IPv4", "IPv5"))), []);
    assert_eq!(model.change(SOURCE, list(vec![object(SERVICE), object(SLICE)])), std::slice::from_ref(&slice));
    assert_eq!(model.change(SOURCE, Change::Delete(slice.clone())), std::slice::from_ref(&slice));
    assert_eq!(model.change(SOURCE, Change::Delete(slice)), []);
    assert_eq!(model.change(SOURCE, list(Vec::new())), [service]);
}
