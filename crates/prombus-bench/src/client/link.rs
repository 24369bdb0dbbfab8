//! One non-blocking connection of a run, with its input and output buffers.

use crate::wire::{Received, Wire};
use anyhow::{Context, bail};
use rustix::event::epoll;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;

/// The role of a connection.
pub(super) enum Role {
    Publisher {
        /// The number of the publisher.
        index: usize,
        /// Sent messages without an answer.
        in_flight: usize,
        /// When each message was due: a ring buffer indexed by message number, at least twice as long as the window.
        due_ns: Vec<u64>,
    },
    Consumer {
        /// The number of the group.
        group: usize,
        delivered: u64,
        /// Whether the server has processed all acks.
        is_past_barrier: bool,
    },
}

/// One connection, with received bytes that are not parsed yet and bytes to be written.
pub(super) struct Link<W> {
    pub(super) stream: TcpStream,
    pub(super) wire: W,
    pub(super) role: Role,
    /// Received bytes that are not parsed yet: the start of an incomplete frame.
    input: Vec<u8>,
    /// Bytes to be written.
    pub(super) out: Vec<u8>,
    /// How many bytes of `out` were written.
    written: usize,
    /// Whether bytes remain to be written. If so, epoll reports when the socket is writable.
    pub(super) waits_for_room: bool,
}

impl<W: Wire> Link<W> {
    pub(super) fn new(stream: TcpStream, wire: W, role: Role) -> anyhow::Result<Self> {
        stream.set_nonblocking(true)?;
        let (input, out) = (Vec::new(), Vec::new());
        Ok(Self { stream, wire, role, input, out, written: 0, waits_for_room: false })
    }

    /// Reads and parses the available bytes into `received`. Returns false if there were none.
    pub(super) fn read(&mut self, scratch: &mut [u8], received: &mut Received) -> anyhow::Result<bool> {
        let count = match self.stream.read(scratch) {
            Ok(0) => bail!("the server closed the connection"),
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(false);
            }
            Err(error) => return Err(error).context("the connection broke"),
        };
        if self.input.is_empty() {
            let taken = self.wire.take(&scratch[..count], received)?;
            self.input.extend_from_slice(&scratch[taken..count]);
        } else {
            self.input.extend_from_slice(&scratch[..count]);
            let taken = self.wire.take(&self.input, received)?;
            self.input.drain(..taken);
        }
        Ok(true)
    }

    /// Writes as many pending bytes as possible. If some remain, epoll reports when the socket is writable again. `at` is the
    /// connection's number in the epoll set.
    pub(super) fn flush(&mut self, epoll: &OwnedFd, at: usize) -> anyhow::Result<()> {
        while self.written < self.out.len() {
            match self.stream.write(&self.out[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("the connection broke"),
            }
        }
        let waits_for_room = self.written < self.out.len();
        if !waits_for_room {
            self.out.clear();
            self.written = 0;
        }
        if waits_for_room != self.waits_for_room {
            self.waits_for_room = waits_for_room;
            let flags = if waits_for_room {
                epoll::EventFlags::IN | epoll::EventFlags::OUT
            } else {
                epoll::EventFlags::IN
            };
            epoll::modify(epoll, &self.stream, epoll::EventData::new_u64(at as u64), flags)?;
        }
        Ok(())
    }
}
