//! One connection: where it stands between greeting and goodbye, and what it wants next.
//! Promises: see [`super`].
//! Leaves to others: what the messages say (`handshake`, `transmission`, `answer`).

use super::answer;
use super::export::{ExportInfo, Exports};
use super::gather::Gather;
use super::handshake::{Handshake, Step};
use super::limits::{BYTES_MAX, OPTION_BYTES_MAX, REQUESTS_MAX};
use super::open::{Handle, Open, OpenRequests};
use super::option::OptionHeader;
use super::outgoing::Outgoing;
use super::protocol::{CLIENT_FLAGS_BYTES, OPTION_HEADER_BYTES, REQUEST_HEADER_BYTES};
use super::transmission::{Admission, Header, Refusal, Session, WriteHeader};
use std::collections::VecDeque;
use std::sync::Arc;
use weft_engine::buffer::Buffer;
use weft_engine::interface::{Reply, Request, RequestError};
use weft_engine::{FamilyId, Generation};

/// What the client asks of the engine.
#[derive(Debug)]
pub enum Event {
    /// Answer it with [`Connection::reply`], in any order.
    Request { handle: Handle, family: FamilyId, request: Request },
}

/// What can be done for a connection now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Bytes, as many as there are, for [`Connection::next_event`].
    Bytes,
    /// The next `len` bytes of the stream (never 0, at most [`super::limits::PAYLOAD_BYTES_MAX`]) as one buffer, for
    /// [`Connection::payload`]; best page-aligned.
    Payload { len: usize },
    /// Nothing: replies have to be given, or sent, first.
    Wait,
    /// Nothing more: all is answered. Send what there is to send, and close.
    Close,
}

/// Where the stream of the client stands: what its next bytes are.
#[derive(Debug)]
enum Phase {
    ClientFlags,
    OptionHeader,
    OptionData(OptionHeader),
    /// Data of an option that was refused for its length.
    SkipOption {
        remaining: u32,
    },
    RequestHeader,
    Payload(WriteHeader),
    /// Payload of a write that is refused. Answered behind its last byte: clients do not expect an answer
    /// to what they are still sending.
    SkipPayload {
        remaining: u32,
        cookie: u64,
        refusal: Refusal,
    },
    /// The client has said goodbye or nonsense; nothing it sends counts any more.
    Closing,
}

/// The server's side of one connection.
pub struct Connection {
    exports: Arc<dyn Exports>,
    phase: Phase,
    gather: Gather,
    handshake: Handshake,
    /// The chosen export; None during the handshake.
    session: Option<Session>,
    open: OpenRequests,
    /// Open requests for which the engine was busy, waiting for `resume`.
    held: VecDeque<Handle>,
    /// Open requests to be handed out once more.
    again: VecDeque<Handle>,
    outgoing: Outgoing,
    /// Bytes of memory of what was taken to be sent, and is not yet.
    unsent: usize,
    /// Bytes of the reads in `held` and `again`: none of them is in memory yet.
    not_begun: usize,
    /// The client has gone.
    left: bool,
}

impl Connection {
    /// A client has connected; the greeting is already in [`Connection::outgoing`].
    pub fn new(exports: Arc<dyn Exports>) -> Self {
        let mut outgoing = Outgoing::default();
        Handshake::greet(&mut outgoing);
        Self {
            exports,
            phase: Phase::ClientFlags,
            gather: Gather::default(),
            handshake: Handshake::default(),
            session: None,
            open: OpenRequests::default(),
            held: VecDeque::new(),
            again: VecDeque::new(),
            outgoing,
            unsent: 0,
            not_begun: 0,
            left: false,
        }
    }

    /// What can be done now. Call [`Connection::next_event`] until it gives None before asking.
    pub fn want(&self) -> Want {
        match &self.phase {
            Phase::Closing if self.open.count() == 0 => Want::Close,
            Phase::Closing => Want::Wait,
            Phase::Payload(write) => Want::Payload { len: write.len as usize },
            _ if self.is_full() => Want::Wait,
            _ => Want::Bytes,
        }
    }

    /// Takes bytes off the front of `input` until they are a request for the engine. None: see [`Connection::want`];
    /// `input` is then empty unless payload is wanted or the connection has to wait.
    pub fn next_event(&mut self, input: &mut &[u8]) -> Option<Event> {
        if let Some(handle) = self.again.pop_front() {
            self.not_begun -= self.to_be_read(handle);
            let request = self.open.get(handle).request.clone();
            return Some(self.event(handle, request));
        }
        while !self.is_full() {
            match &mut self.phase {
                Phase::ClientFlags => {
                    let handshake = &mut self.handshake;
                    let step =
                        self.gather.take(CLIENT_FLAGS_BYTES, input, |bytes| handshake.client_flags(bytes))?;
                    self.step(step);
                }
                Phase::OptionHeader => {
                    let header = self.gather.take(OPTION_HEADER_BYTES, input, OptionHeader::read)?;
                    self.on_option_header(header);
                }
                Phase::OptionData(header) => {
                    let (handshake, outgoing) = (&mut self.handshake, &mut self.outgoing);
                    let (header, exports) = (*header, &*self.exports);
                    let step = self.gather.take(header.len as usize, input, |data| {
                        handshake.on_option(header.option, data, exports, outgoing)
                    })?;
                    self.step(step);
                }
                Phase::SkipOption { remaining } => {
                    skip(remaining, input)?;
                    self.phase = Phase::OptionHeader;
                }
                Phase::RequestHeader => {
                    let header = self.gather.take(REQUEST_HEADER_BYTES, input, Header::read)?;
                    if let Some(event) = self.on_request(header) {
                        return Some(event);
                    }
                }
                Phase::Payload(_) => return None,
                Phase::SkipPayload { remaining, cookie, refusal } => {
                    skip(remaining, input)?;
                    let session = self.session.as_ref().expect("requests come after the choice of an export");
                    answer::refuse(session, *cookie, *refusal, &mut self.outgoing);
                    self.phase = Phase::RequestHeader;
                }
                Phase::Closing => {
                    *input = &[];
                    return None;
                }
            }
        }
        None
    }

    /// The payload that was wanted, whole. Gives the request it belongs to.
    pub fn payload(&mut self, data: Buffer) -> Event {
        let Phase::Payload(write) = std::mem::replace(&mut self.phase, Phase::RequestHeader) else {
            panic!("payload is given when it is wanted");
        };
        assert!(data.len() == write.len as usize, "payload is as long as was wanted");
        self.opened(write.open(data))
    }

    /// The engine's answer to a request that was handed out. With [`RequestError::Busy`] the connection keeps the
    /// request, takes no others, and hands it out again after [`Connection::resume`].
    pub fn reply(&mut self, handle: Handle, reply: Reply) {
        if reply == Reply::Error(RequestError::Busy) {
            if self.left {
                self.give_up(handle);
            } else {
                self.not_begun += self.to_be_read(handle);
                self.held.push_back(handle);
            }
            return;
        }
        let open = self.open.remove(handle);
        let session = self.session.as_ref().expect("requests come after the choice of an export");
        answer::answer(session, &open, reply, &mut self.outgoing);
    }

    /// Whether the engine was too busy for a request that this connection keeps. Call [`Connection::resume`] and
    /// [`Connection::next_event`] a moment later.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Lets [`Connection::next_event`] hand out again what the engine was too busy for.
    pub fn resume(&mut self) {
        self.again.append(&mut self.held);
    }

    /// No more is taken from the client (the node wants to stop): what is open is still answered.
    pub fn hang_up(&mut self) {
        self.phase = Phase::Closing;
    }

    /// The client's stream has ended. What the engine was given is still done and answered; what it was too busy for is given
    /// up: it could be done long after, and undo what the client, back on another connection, has written meanwhile.
    pub fn leave(&mut self) {
        self.hang_up();
        self.left = true;
        let given_up: Vec<Handle> = self.held.drain(..).chain(self.again.drain(..)).collect();
        for handle in given_up {
            self.give_up(handle);
        }
        self.not_begun = 0;
    }

    /// A request is not done, and that is said: a client that has ended its own side may wait for each reply, as libnbd does
    /// behind its goodbye.
    fn give_up(&mut self, handle: Handle) {
        let open = self.open.remove(handle);
        let session = self.session.as_ref().expect("requests come after the choice of an export");
        answer::answer(session, &open, Reply::Error(RequestError::NotServed), &mut self.outgoing);
    }

    /// What an open request will bring into memory, besides what it has brought.
    fn to_be_read(&self, handle: Handle) -> usize {
        let open = self.open.get(handle);
        if matches!(open.request, Request::Write { .. }) { 0 } else { open.bytes() }
    }

    /// Whether what was chosen is still exported where the client has connected.
    pub fn is_offered(&self) -> bool {
        let Some(session) = &self.session else { return true };
        let is_it = |info: ExportInfo| (info.family, info.snapshot) == (session.family, session.snapshot);
        self.exports.list().iter().any(|name| self.exports.find(name).is_some_and(is_it))
    }

    /// What is to be sent, besides what was swapped out earlier.
    pub fn outgoing(&self) -> &Outgoing {
        &self.outgoing
    }

    /// Takes what is to be sent, and leaves an empty list to fill meanwhile. Call it when what was taken before is
    /// sent: order on the wire is that of the lists.
    pub fn swap_outgoing(&mut self, empty: &mut Outgoing) {
        assert!(empty.is_empty(), "what was taken before has been sent");
        std::mem::swap(&mut self.outgoing, empty);
        self.unsent = empty.memory_bytes();
    }

    /// What was taken last and is still to be sent keeps so many bytes of memory ([`Outgoing::memory_bytes`]). A client that does not
    /// receive is not asked for more.
    pub fn set_unsent(&mut self, bytes: usize) {
        self.unsent = bytes;
    }

    /// Whether no export has been chosen yet. Only a limited time should be given for that.
    pub fn is_negotiating(&self) -> bool {
        self.session.is_none()
    }

    /// The vDisk of the chosen export.
    pub fn family(&self) -> Option<FamilyId> {
        self.session.as_ref().map(|session| session.family)
    }

    /// The snapshot of it that was chosen; None: the vDisk as it is, or nothing yet.
    pub fn snapshot(&self) -> Option<Generation> {
        self.session.as_ref().and_then(|session| session.snapshot)
    }

    /// Requests that the engine has not answered.
    pub fn open_requests(&self) -> usize {
        self.open.count()
    }

    /// The bytes of each of them that are in memory, or will be.
    pub fn open_bytes(&self) -> impl Iterator<Item = (Handle, usize)> {
        self.open.all().map(|(handle, open)| (handle, open.bytes()))
    }

    /// Bytes that are in memory for this connection, or will be: payload, what is being read, answers that are not sent. A read
    /// that the engine was too busy for is none of it yet.
    pub fn memory_bytes(&self) -> usize {
        let open = self.open.bytes();
        assert!(open >= self.not_begun, "what is held is open");
        // Of what is about to be sent the engine may have the rest anyway, and it is kept for no longer than this moment. Only what
        // a client does not take keeps memory that would be given back else.
        let fresh = if self.unsent == 0 { self.outgoing.len() } else { self.outgoing.memory_bytes() };
        open - self.not_begun + fresh + self.unsent
    }

    /// What counts for the limit of one connection. With nothing unsent that is what is open alone, so whoever takes its answers
    /// goes on.
    fn taken_bytes(&self) -> usize {
        self.open.bytes() + self.outgoing.memory_bytes() + self.unsent
    }

    /// Too much is open or unsent to take more, or the engine is busy.
    fn is_full(&self) -> bool {
        self.open.count() >= REQUESTS_MAX || self.taken_bytes() >= BYTES_MAX || !self.held.is_empty()
    }

    fn step(&mut self, step: Step) {
        self.phase = match step {
            Step::NextOption => Phase::OptionHeader,
            Step::Serve(session) => {
                self.session = Some(session);
                Phase::RequestHeader
            }
            Step::Close => Phase::Closing,
        };
    }

    fn on_option_header(&mut self, header: Option<OptionHeader>) {
        self.phase = match header.filter(|header| self.handshake.count_option(header)) {
            None => Phase::Closing,
            Some(header) if header.len > OPTION_BYTES_MAX => {
                match Handshake::refuse_length(header, &mut self.outgoing) {
                    Step::Close => Phase::Closing,
                    _ => Phase::SkipOption { remaining: header.len },
                }
            }
            Some(header) => Phase::OptionData(header),
        };
    }

    fn on_request(&mut self, header: Option<Header>) -> Option<Event> {
        let session = self.session.as_ref().expect("requests come after the choice of an export");
        let Some(header) = header else {
            // Without the magic number nobody knows where the next request begins.
            self.phase = Phase::Closing;
            return None;
        };
        match session.admit(&header) {
            Admission::Ask(open) => return Some(self.opened(open)),
            Admission::Payload(write) => self.phase = Phase::Payload(write),
            Admission::Done => answer::done(header.cookie, &mut self.outgoing),
            Admission::Refuse(refusal) => answer::refuse(session, header.cookie, refusal, &mut self.outgoing),
            Admission::Skip(refusal) => {
                self.phase = Phase::SkipPayload { remaining: header.len, cookie: header.cookie, refusal };
            }
            Admission::Goodbye => self.phase = Phase::Closing,
        }
        None
    }

    fn opened(&mut self, open: Open) -> Event {
        let request = open.request.clone();
        let handle = self.open.insert(open);
        self.event(handle, request)
    }

    fn event(&self, handle: Handle, request: Request) -> Event {
        let family = self.family().expect("requests come after the choice of an export");
        Event::Request { handle, family, request }
    }
}

/// Drops the next `remaining` bytes; None while more of them are to come.
fn skip(remaining: &mut u32, input: &mut &[u8]) -> Option<()> {
    let now = input.len().min(*remaining as usize);
    *input = &input[now..];
    *remaining -= now as u32;
    (*remaining == 0).then_some(())
}
