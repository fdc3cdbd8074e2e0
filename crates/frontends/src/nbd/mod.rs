//! A server of the NBD protocol (fixed newstyle with structured replies) as a state machine without I/O.
//! The protocol is described in <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>.
//!
//! Promises: each request that is handed out as an [`Event`] is answered to the client exactly once, after
//! [`Connection::reply`]; no input whatever makes it panic or take more memory than [`limits`] allow; payload is
//! neither copied nor looked at here.
//! Leaves to others: sockets, a time limit on the handshake, and memory for payload (the node).
//!
//! What a node does with a connection, here with a blocking socket and without an engine:
//!
//! ```no_run
//! use std::io::{Read, Write};
//! use std::sync::Arc;
//! use weft_engine::buffer::{Buffer, Pages};
//! use weft_engine::interface::{Reply, Request};
//! use weft_frontends::nbd::{Connection, Event, Exports, Outgoing, Want};
//!
//! fn ask_the_engine(_request: Request) -> Reply { Reply::Done }
//!
//! fn serve(mut socket: std::os::unix::net::UnixStream, exports: Arc<dyn Exports>) -> std::io::Result<()> {
//!     let mut connection = Connection::new(exports);
//!     let mut scratch = vec![0; 64 << 10];
//!     let mut rest: &[u8] = &[]; // received, not yet consumed: part of `scratch`
//!     let mut outgoing = Outgoing::default();
//!     loop {
//!         // 1. Send what there is. The connection fills one list while the kernel works on the other.
//!         connection.swap_outgoing(&mut outgoing);
//!         while !outgoing.is_empty() {
//!             let slices: Vec<_> = outgoing.slices().take(64).map(std::io::IoSlice::new).collect();
//!             let count = socket.write_vectored(&slices)?;
//!             outgoing.sent(count);
//!             connection.set_unsent(outgoing.memory_bytes());
//!         }
//!         // 2. Bytes in, events out, until it wants more (or something else).
//!         let event = match connection.next_event(&mut rest) {
//!             Some(event) => event,
//!             // Answers that needed no engine go out before anybody waits for the client.
//!             None if !connection.outgoing().is_empty() => continue,
//!             None => match connection.want() {
//!                 Want::Bytes => {
//!                     let count = socket.read(&mut scratch)?;
//!                     if count == 0 { connection.leave(); }
//!                     rest = &scratch[..count];
//!                     continue;
//!                 }
//!                 // Exactly `len` bytes of one write: what is in `rest` first, the rest straight from
//!                 // the socket into memory that a drive can take as it is.
//!                 Want::Payload { len } => {
//!                     let mut pages = Pages::zeroed(len);
//!                     let here = rest.len().min(len);
//!                     pages.bytes_mut()[..here].copy_from_slice(&rest[..here]);
//!                     rest = &rest[here..];
//!                     socket.read_exact(&mut pages.bytes_mut()[here..len])?;
//!                     connection.payload(pages.freeze().slice(0..len))
//!                 }
//!                 // Replies have to be given or sent first. (Cannot last in this simple loop.)
//!                 Want::Wait => continue,
//!                 // Everything is answered and sent.
//!                 Want::Close => return Ok(()),
//!             },
//!         };
//!         // 3. The engine answers, some time later and in any order.
//!         let Event::Request { handle, family: _, request } = event;
//!         let reply = ask_the_engine(request);
//!         connection.reply(handle, reply);
//!         // 4. A busy engine: the connection has kept the request, and hands it out again after `resume`.
//!         if connection.is_holding() { connection.resume(); }
//!     }
//! }
//! ```

mod answer;
mod connection;
mod export;
mod gather;
mod handshake;
pub mod limits;
mod open;
mod option;
mod outgoing;
mod protocol;
mod transmission;

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod pretend;
#[cfg(test)]
mod stories;

pub use connection::{Connection, Event, Want};
pub use export::{ExportInfo, Exports};
pub use open::Handle;
pub use outgoing::Outgoing;
