//! States that are streamed, and servers that cannot.

use super::{Answer, added, check_streaming, end, event, object};
use serde_json::json;

#[tokio::test]
async fn a_state_is_streamed_and_the_stream_goes_on_as_a_watch() {
    let script = vec![
        Answer::Broken(vec![added("a", 1), added("b", 2), end(5), added("c", 6)]),
        Answer::List(6, json!([])),
        Answer::Ended(vec![event("ERROR", &json!({"kind": "Status", "code": 410, "message": "too old"}))]),
        Answer::Open(vec![added("a", 1), added("c", 6), end(9), event("MODIFIED", &object("a", 10))]),
    ];
    let changes = ["+n/a", "+n/b", "+n/c", "-n/b", "~n/a"];
    check_streaming(script, &changes, &["stream", "probe", "watch 6", "stream"]).await;
}

#[tokio::test]
async fn a_state_that_changes_while_it_is_streamed_is_told_as_it_ends() {
    let mut unreadable = object("d", 4);
    unreadable["data"] = json!("not a map");
    let lines = vec![
        added("a", 1),
        added("b", 2),
        added("c", 3),
        added("d", 3),
        event("MODIFIED", &object("a", 4)),
        event("DELETED", &object("b", 5)),
        event("MODIFIED", &unreadable),
        end(6),
    ];
    check_streaming(vec![Answer::Open(lines)], &["+n/a", "+n/c"], &["stream"]).await;
}

#[tokio::test]
async fn a_server_that_does_not_stream_is_listed_ever_after() {
    let bookmark = json!({"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
        "resourceVersion": "4"}}});
    for refusal in [
        Answer::Status(400),
        Answer::Status(405),
        Answer::Status(422),
        // One that ignores the parameter.
        Answer::Open(vec![added("a", 1), bookmark]),
    ] {
        let script = vec![
            refusal,
            Answer::List(5, json!([object("a", 1)])),
            Answer::Status(410),
            Answer::List(9, json!([])),
            Answer::Open(vec![]),
        ];
        let requests = ["stream", "list", "watch 5", "list", "watch 9"];
        check_streaming(script, &["+n/a", "-n/a"], &requests).await;
    }
}

#[tokio::test]
async fn a_stream_that_fails_is_replaced_by_one_list() {
    let error = json!({"kind": "Status", "code": 500, "message": "scripted"});
    for failure in [
        Answer::Status(500),
        Answer::Status(403),
        Answer::Busy(429, 0),
        // Nothing of a state that is not complete is told.
        Answer::Ended(vec![added("z", 1)]),
        Answer::Broken(vec![added("z", 1)]),
        Answer::Open(vec![added("z", 1), event("ERROR", &error)]),
    ] {
        let script = vec![
            failure,
            Answer::List(5, json!([object("a", 1)])),
            Answer::Status(410),
            Answer::Open(vec![end(9)]),
        ];
        check_streaming(script, &["+n/a", "-n/a"], &["stream", "list", "watch 5", "stream"]).await;
    }
}

#[tokio::test]
async fn a_server_that_does_not_know_the_kind_is_asked_to_stream_again() {
    let script = vec![Answer::Status(404), Answer::Open(vec![added("a", 1), end(5)])];
    check_streaming(script, &["+n/a"], &["stream", "stream"]).await;
}
