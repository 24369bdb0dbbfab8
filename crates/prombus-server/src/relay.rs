//! The relay: forwards the connections of a follower to the leader of a shared store.
//!
//! A follower reads the head of the first request ([`FirstRequest`]), connects to the leader ([`Leader::connect`]) and copies
//! bytes in both directions ([`Splice`]). The connection to the leader, the hop, begins with a preface: it contains the client's
//! address, and proves with the secret of the lease record (the entry of the store that names the leader) that a follower sent
//! it. The leader confirms the preface with the same secret before it receives any bytes of the client. So only holders of the
//! secret can claim a client's address, and another process on the leader's port never receives a client's token.

mod first_request;
mod frame_boundary;
mod hop;
mod lane;
mod leader;
mod pinned_certificate;
mod preface;
mod preface_check;
mod replay_window;
mod splice;
mod stream_tracker;
#[cfg(feature = "test-util")]
pub(crate) mod test_preface;

pub(crate) use first_request::{FirstRequest, ReadHead};
pub(crate) use hop::{Hop, HopError, keep_alive};
pub(crate) use leader::Leader;
pub(crate) use preface::{Preface, PrefaceRefused};
pub(crate) use preface_check::{AcceptedPreface, PrefaceCheck};
pub(crate) use splice::Splice;
