//! Clients that disconnect in the middle of a request: the request takes effect in full or not at all.

use std::time::Duration;

use futures_util::future::join_all;
use rstest::rstest;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::checks::ConversationLog;
use super::journal::{ClientConversation, id_of};
use super::stage;
use crate::support::client::Client;
use crate::support::runner::RecordedRequest;
use crate::support::{Engine, Postgres, Sqlite};

/// Number of clients; each disconnects a little later than the one before.
const CLIENTS: u32 = 24;

/// Writes the request without its last `cut` bytes, and resets the connection after `until`.
async fn disconnect(client: &Client, body: &str, cut: usize, until: impl Future<Output = ()>) {
    let host = client.url.trim_start_matches("http://");
    let mut request = format!(
        "POST /v1/events HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        client.key,
        body.len()
    );
    request.truncate(request.len() - cut);
    let mut socket = TcpStream::connect(host).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    until.await;
    socket.set_zero_linger().unwrap();
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnected_requests_take_effect_fully_or_never(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let stage = or_skip!(stage(engine, "15.0").await);
    let (client, runner) = (&stage.client, &stage.runner);
    let mut talk = ClientConversation::new("");
    let events: Vec<_> = (0..CLIENTS).map(|_| talk.event("twin")).collect();
    let clients = (0..).zip(&events).map(|(number, event)| async move {
        // Every fourth request is incomplete.
        let cut = if number % 4 == 0 { 7 } else { 0 };
        let moment = async {
            // Not a wait for a condition: the test needs a disconnect at this moment.
            tokio::time::sleep(Duration::from_micros(800) * number).await;
            if number + 1 == CLIENTS {
                // This client disconnects while its response is in flight.
                let of_event = |request: &RecordedRequest| is_of(request, id_of(event));
                runner
                    .wait_for_request("the last event's run", of_event)
                    .await;
            }
        };
        disconnect(client, &event.to_string(), cut, moment).await;
        (id_of(event), cut == 0)
    });
    let deliveries = join_all(clients).await;
    for (event_id, _) in deliveries.iter().filter(|(_, deliveries)| !deliveries) {
        let found = client.get(&format!("/v1/events/{event_id}")).await;
        assert_eq!(
            found.status, 404,
            "half of an event was taken: {}",
            found.body
        );
    }
    // A retry of the event returns its only run, whether the event was stored or not.
    let mut book = ConversationLog::default();
    book.reconcile(client, vec![talk]).await;
    book.close(client, runner).await;
    assert_eq!(book.figures.runs, events.len());
    assert_eq!(book.figures.endings["completed"], events.len());
    assert!(
        book.figures.stored_unacknowledged > 0,
        "nobody vanished in between"
    );
}

fn is_of(request: &RecordedRequest, event_id: &str) -> bool {
    request.is_run() && request.json()["context"]["event"]["event_id"] == event_id
}
