//! Chooses what a member does with its deliveries, and sends the ACKs, NACKs and MODACKs.

use super::{Held, Member, Waiting};
use crate::connection::Connection;
use crate::group_book::{Sent, Verdict};
use serde_json::json;
use tokio_tungstenite::tungstenite;

/// What a member will do with a delivery.
#[derive(Clone, Copy)]
pub(super) enum Plan {
    Ack {
        with_corr: bool,
    },
    Nack {
        with_corr: bool,
        delay_ms: Option<u64>,
    },
    /// MODACK now, and an ack after longer than the first lease.
    Extend,
    Abandon,
}

impl Member {
    pub(super) fn choose(&mut self, is_poison: bool) -> Plan {
        let with_corr = self.random.chance(400);
        let delay_ms = self.random.chance(700).then(|| self.random.between(10, 1_500));
        if is_poison && self.plan.rejects_poison {
            return Plan::Nack { with_corr, delay_ms };
        }
        if self.random.chance(self.plan.nack_per_mille) {
            Plan::Nack { with_corr, delay_ms }
        } else if self.random.chance(self.plan.abandon_per_mille) {
            Plan::Abandon
        } else if self.random.chance(self.plan.extend_per_mille) {
            Plan::Extend
        } else {
            Plan::Ack { with_corr }
        }
    }

    /// Sends the verdicts that are due.
    pub(super) async fn act(&mut self, connection: &mut Connection) -> Result<(), tungstenite::Error> {
        let now_ms = self.world.now_ms();
        let is_draining = self.world.is_draining();
        let mut index = 0;
        while index < self.held.len() {
            if self.held[index].act_ms > now_ms && !is_draining {
                index += 1;
                continue;
            }
            let held = self.held.swap_remove(index);
            let plan = if is_draining { Plan::Ack { with_corr: true } } else { held.plan };
            let text = self.verdict(connection, held, plan);
            if let Some(text) = text {
                connection.feed(text).await?;
            }
        }
        connection.flush().await
    }

    /// The frame for a delivery. It is recorded here, before it is sent.
    fn verdict(&mut self, connection: &mut Connection, held: Held, plan: Plan) -> Option<String> {
        let (topic, group) = (self.plan.subscription, self.plan.name);
        let sent = Sent { sent_ms: self.world.now_ms(), ..held.sent };
        if matches!(plan, Plan::Abandon) {
            self.world.count("deliveries abandoned");
            return None;
        }
        let number = connection.next_number();
        let mut frame = json!({"topic": topic, "group": group, "id": held.id});
        let mut corr = Some(number);
        match plan {
            Plan::Ack { with_corr } => {
                self.world.count("acks");
                frame["op"] = json!("ACK");
                let verdict = if with_corr { Verdict::AckSent } else { Verdict::AckSilent { handled_ms: 0 } };
                self.world.group(self.group).verdict_sent(&sent, verdict);
                if with_corr {
                    self.waiting.insert(number, Waiting::Ack(sent));
                } else {
                    corr = None;
                    self.silent.push_back((number, sent));
                }
            }
            Plan::Nack { with_corr, delay_ms } => {
                self.world.count("nacks");
                frame["op"] = json!("NACK");
                frame["reason"] = json!(format!("rejected attempt {}", sent.attempt));
                if let Some(delay_ms) = delay_ms {
                    frame["delay_ms"] = json!(delay_ms);
                }
                self.world.group(self.group).verdict_sent(&sent, Verdict::NackSent);
                if with_corr {
                    self.waiting.insert(number, Waiting::Nack(sent, sent.sent_ms + delay_ms.unwrap_or(0)));
                } else {
                    corr = None;
                }
            }
            Plan::Extend => {
                self.world.count("extensions");
                frame["op"] = json!("MODACK");
                // At least the lease time, so that MODACK never shortens the lease.
                let extend_ms = self.plan.ack_timeout_ms + self.random.below(2_000);
                frame["extend_ms"] = json!(extend_ms);
                self.waiting.insert(number, Waiting::Extend(sent, extend_ms));
                let act_ms = sent.sent_ms + self.random.below(self.plan.ack_timeout_ms);
                let plan = Plan::Ack { with_corr: self.random.chance(500) };
                self.held.push(Held { plan, act_ms, ..held });
            }
            Plan::Abandon => return None,
        }
        if let Some(corr) = corr {
            frame["corr"] = json!(corr);
        }
        Some(frame.to_string())
    }
}
