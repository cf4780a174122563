//! Notifications over core NATS, without persistence.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, ConnectOptions, Event, Subject, Subscriber};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use secrecy::ExposeSecret;
use tokio::sync::{Notify, mpsc};

use super::notification::{NotificationBatch, ReplicaId};
use super::{Bus, BusFault, Inbound, NatsLogin, NatsSettings, Notification, OnInbound};

/// Capacity of the receive queue, in messages. If it is full, the client drops messages and reports it, and
/// every waiting task polls.
const INBOX: usize = 4096;
/// Ping interval. Two missed pings close a dead connection.
const PING: Duration = Duration::from_secs(5);
/// Maximum time to flush one message. Later notifications are batched meanwhile.
const TIMEOUT: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// A bus over one NATS server that all replicas reach.
pub(crate) struct NatsBus {
    settings: NatsSettings,
    subject: Subject,
}

/// State of the connection.
#[derive(Default)]
struct ConnectionState {
    state: AtomicU8,
    missed: Notify,
}

const CONNECTED: u8 = 1;
const DISCONNECTED: u8 = 2;

impl ConnectionState {
    fn handle(&self, event: &Event) {
        match event {
            Event::Connected => {
                if self.state.swap(CONNECTED, Ordering::AcqRel) != CONNECTED {
                    tracing::info!("notification bus connected to NATS");
                }
                // Core NATS stores nothing, so messages of the outage are lost.
                self.missed.notify_one();
            }
            Event::SlowConsumer(_) => self.missed.notify_one(),
            Event::Disconnected | Event::ClientError(_) | Event::ServerError(_) => {
                // Logged once per outage.
                if self.state.swap(DISCONNECTED, Ordering::AcqRel) != DISCONNECTED {
                    let remark = "notification bus lost NATS; replicas poll until it reconnects";
                    tracing::warn!(reason = %event, "{remark}");
                }
            }
            // Closing is our own action at shutdown.
            Event::Closed | Event::LameDuckMode | Event::Draining => {}
        }
    }
}

impl NatsBus {
    /// `subject` must be the same for all replicas of one database.
    pub(crate) fn new(settings: NatsSettings, subject: String) -> Self {
        let subject = Subject::from(subject);
        Self { settings, subject }
    }

    async fn connect(&self, line: &Arc<ConnectionState>) -> Result<(Client, Subscriber), String> {
        let state = Arc::clone(line);
        let options = options(&self.settings).map_err(|fault| fault.to_string())?;
        let client = options
            .event_callback(move |event| {
                state.handle(&event);
                std::future::ready(())
            })
            .connect(self.settings.url.as_str())
            .await
            .map_err(|error| error.to_string())?;
        let subscribed = client.subscribe(self.subject.clone()).await;
        let subscriber = subscribed.map_err(|error| error.to_string())?;
        Ok((client, subscriber))
    }

    async fn send(
        &self,
        client: &Client,
        me: ReplicaId,
        outgoing: &mut mpsc::Receiver<Notification>,
    ) {
        while let Some(first) = outgoing.recv().await {
            let notice = NotificationBatch::of(first, outgoing).write(me);
            // Dropped: receivers poll after a reconnect.
            if client.connection_state() != State::Connected {
                continue;
            }
            let sending = async {
                let sent = client.publish(self.subject.clone(), notice.into()).await;
                sent.is_ok() && client.flush().await.is_ok()
            };
            // A lost notification costs one poll interval, so it is not repeated.
            let _ = tokio::time::timeout(TIMEOUT, sending).await;
        }
    }
}

async fn listen(
    mut subscriber: Subscriber,
    line: &ConnectionState,
    me: ReplicaId,
    on_inbound: OnInbound<'_>,
) {
    loop {
        tokio::select! {
            () = line.missed.notified() => on_inbound(Inbound::Missed),
            message = subscriber.next() => {
                let Some(message) = message else { return };
                // Any client of the server can publish here: malformed bytes are empty.
                let notice = std::str::from_utf8(&message.payload).unwrap_or_default();
                me.read(notice).for_each(|notification| on_inbound(Inbound::Notification(notification)));
            }
        }
    }
}

impl Bus for NatsBus {
    fn run<'a>(
        &'a self,
        outgoing: &'a mut mpsc::Receiver<Notification>,
        on_inbound: OnInbound<'a>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let (me, line) = (ReplicaId::new(), Arc::new(ConnectionState::default()));
            match self.connect(&line).await {
                Ok((client, subscriber)) => {
                    tokio::join!(
                        self.send(&client, me, outgoing),
                        listen(subscriber, &line, me, on_inbound)
                    );
                }
                // Unreachable: the settings are validated at start, and the client connects in the background.
                Err(error) => tracing::error!(error, "cannot connect to NATS; replicas poll"),
            }
        })
    }
}

/// Connection options with unlimited reconnects.
pub(crate) fn options(settings: &NatsSettings) -> Result<ConnectOptions, BusFault> {
    let options = ConnectOptions::new()
        .name("runnel")
        // The sender has already woken its own waiters.
        .no_echo()
        .retry_on_initial_connect()
        .max_reconnects(None)
        .reconnect_delay_callback(pause)
        .ping_interval(PING)
        .subscription_capacity(INBOX)
        // Connect to configured servers only, never to discovered ones.
        .ignore_discovered_servers();
    let options = match &settings.login {
        NatsLogin::Anonymous => options,
        NatsLogin::User(user, password) => {
            options.user_and_password(user.clone(), password.expose_secret().to_owned())
        }
        NatsLogin::Token(token) => options.token(token.expose_secret().to_owned()),
        NatsLogin::Credentials(text) => options
            .credentials(text.expose_secret())
            .map_err(|_| BusFault("bus.credentials must hold a NATS credentials file"))?,
    };
    let Some(file) = &settings.ca_file else {
        return Ok(options);
    };
    // The client would report a missing file only at the connection, in the background.
    if std::fs::File::open(file).is_err() {
        return Err(BusFault("the file of bus.ca_file cannot be read"));
    }
    Ok(options.add_root_certificates(file.clone()))
}

fn pause(attempts: usize) -> Duration {
    let doublings = u32::try_from(attempts.saturating_sub(1)).unwrap_or(u32::MAX);
    match attempts {
        0 | 1 => Duration::ZERO,
        _ => FIRST_PAUSE
            .saturating_mul(2_u32.saturating_pow(doublings))
            .min(MAX_PAUSE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reconnects_once_a_second_without_limit() {
        assert_eq!(pause(1), Duration::ZERO);
        assert_eq!(pause(2), FIRST_PAUSE * 2);
        assert_eq!(pause(100), MAX_PAUSE);
        assert_eq!(pause(usize::MAX), MAX_PAUSE);
    }
}
