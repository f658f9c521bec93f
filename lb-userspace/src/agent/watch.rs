//! Tells when interfaces, addresses or routes may have changed. What changed is then looked up, never guessed from
//! the messages: so nothing is wrong after a message was lost.

use std::time::Duration;

use futures::StreamExt;
use rtnetlink::MulticastGroup;
use tokio::sync::watch;
use tracing::warn;

/// How long a broken watch waits before it starts anew.
const PAUSE: Duration = Duration::from_secs(1);

const GROUPS: [MulticastGroup; 5] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
];

/// Starts watching. The receiver's value changes after each message, and after each gap in them.
pub fn start() -> watch::Receiver<u64> {
    let (sender, receiver) = watch::channel(0_u64);
    tokio::spawn(async move {
        while !sender.is_closed() {
            if let Err(error) = follow(&sender).await {
                warn!("cannot watch the network interfaces: {error}; trying again");
            }
            tokio::time::sleep(PAUSE).await;
        }
    });
    receiver
}

async fn follow(sender: &watch::Sender<u64>) -> std::io::Result<()> {
    let (connection, _handle, mut messages) = rtnetlink::new_multicast_connection(&GROUPS)?;
    let connection = tokio::spawn(connection);
    // Whatever happened before the socket was open.
    sender.send_modify(|count| *count += 1);
    // Any message counts, that of an overrun too.
    while !sender.is_closed() && messages.next().await.is_some() {
        sender.send_modify(|count| *count += 1);
    }
    connection.abort();
    Ok(())
}
