//! Publishers with a window of publishes in flight. Every second one chooses its ids, and resends publishes that were not
//! answered. The others cannot know whether such a publish was stored, and do not resend it.

use super::{TOPIC, World};
use crate::ws_client::{Frame, publish_text};
use futures_util::{FutureExt, SinkExt, StreamExt};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio_tungstenite::tungstenite::{self, Message};

const WINDOW: usize = 64;

/// The publishes of a publisher.
#[derive(Default)]
pub(super) struct Sent {
    /// By number of the event: id and seq of the answer, if there was one.
    pub(super) answers: Vec<Option<(String, u64)>>,
    pub(super) duplicates: usize,
}

/// A payload that names its publisher and number, of varying length.
pub(super) fn payload(publisher: usize, number: usize) -> String {
    let fill = "x".repeat((publisher * 7 + number * 31) % 400);
    format!("{{\"publisher\":{publisher},\"number\":{number},\"fill\":\"{fill}\"}}")
}

fn chosen_id(publisher: usize, number: usize) -> Option<String> {
    (publisher % 2 == 0).then(|| format!("{publisher:08x}-0000-4000-8000-{number:012x}"))
}

pub(super) async fn publish(world: Arc<World>, publisher: usize) -> Sent {
    let mut sent = Sent::default();
    let mut unanswered: VecDeque<usize> = VecDeque::new();
    while let Some((_, mut socket)) = world.connect().await {
        let to_resend = std::mem::take(&mut unanswered);
        let mut to_send = if publisher % 2 == 0 { to_resend } else { VecDeque::new() };
        let ended: Result<(), tungstenite::Error> = async {
            loop {
                while unanswered.len() < WINDOW {
                    let is_over = world.is_publishing_over.load(Ordering::SeqCst);
                    let Some(number) = to_send.pop_front().or_else(|| {
                        (!is_over).then(|| {
                            sent.answers.push(None);
                            sent.answers.len() - 1
                        })
                    }) else {
                        break;
                    };
                    unanswered.push_back(number);
                    let id = chosen_id(publisher, number);
                    let text = publish_text(TOPIC, number as u64, id.as_deref(), &payload(publisher, number));
                    socket.feed(Message::text(text)).await?;
                }
                if unanswered.is_empty() {
                    return Ok(());
                }
                socket.flush().await?;
                let mut next = Some(socket.next().await);
                while let Some(message) = next {
                    let message = message.ok_or(tungstenite::Error::ConnectionClosed)??;
                    if let Message::Text(text) = message {
                        let answer = Frame::parse(&text);
                        assert!(answer.is_ok(), "{text}");
                        let number = usize::try_from(answer.corr.unwrap()).unwrap();
                        assert_eq!(unanswered.pop_front(), Some(number), "OKs of a topic arrive in order");
                        sent.duplicates += usize::from(answer.duplicate);
                        sent.answers[number] = Some((answer.id, answer.seq));
                    }
                    next = socket.next().now_or_never();
                }
            }
        }
        .await;
        // Publishes that were still to be resent are unanswered too.
        unanswered.extend(to_send);
        if ended.is_ok() {
            break;
        }
    }
    sent
}
