//! The handshake: options are answered until the client has chosen an export.
//! Promises: a bounded number of options and bytes; what is not known is refused and changes nothing.
//! Leaves to others: encryption, which is not offered yet: STARTTLS is refused as unknown.

use super::export::{ExportInfo, Exports};
use super::limits::{HANDSHAKE_BYTES_MAX, HANDSHAKE_OPTIONS_MAX, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX};
use super::option::{ContextRequest, InfoRequest, OptionHeader};
use super::outgoing::Outgoing;
use super::protocol::*;
use super::transmission::Session;

/// What happens after a message of the handshake.
pub(super) enum Step {
    NextOption,
    Serve(Session),
    Close,
}

/// What has been agreed so far.
#[derive(Debug, Default)]
pub(super) struct Handshake {
    /// The client does not want the 124 zero bytes behind the answer to EXPORT_NAME.
    no_zeroes: bool,
    structured: bool,
    /// The export for which the block status was asked for; it counts only if this is the one chosen.
    context_of: Option<String>,
    options: u32,
    bytes: u64,
}

impl Handshake {
    pub(super) fn greet(outgoing: &mut Outgoing) {
        outgoing.push_bytes(&MAGIC.to_be_bytes());
        outgoing.push_bytes(&OPTION_MAGIC.to_be_bytes());
        outgoing.push_bytes(&(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
    }

    pub(super) fn client_flags(&mut self, bytes: &[u8]) -> Step {
        let flags = u32::from_be_bytes(bytes.try_into().expect("the flags are four bytes"));
        let known = u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        if flags & !known != 0 {
            return Step::Close;
        }
        self.no_zeroes = flags & u32::from(FLAG_NO_ZEROES) != 0;
        Step::NextOption
    }

    /// Counts an option against the limits; false: the client has had enough of them.
    pub(super) fn count_option(&mut self, header: &OptionHeader) -> bool {
        self.options += 1;
        self.bytes += (OPTION_HEADER_BYTES as u64) + u64::from(header.len);
        self.options <= HANDSHAKE_OPTIONS_MAX && self.bytes <= HANDSHAKE_BYTES_MAX
    }

    /// The answer to an option with too much data.
    pub(super) fn refuse_length(header: OptionHeader, outgoing: &mut Outgoing) -> Step {
        if header.option == OPT_EXPORT_NAME {
            // This one option has no answer that says no.
            return Step::Close;
        }
        refuse(header.option, REP_ERR_TOO_BIG, "the option is too long", outgoing);
        Step::NextOption
    }

    pub(super) fn on_option(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn Exports,
        outgoing: &mut Outgoing,
    ) -> Step {
        match option {
            OPT_EXPORT_NAME => return self.on_export_name(data, exports, outgoing),
            OPT_ABORT => {
                push(option, REP_ACK, &[], outgoing);
                return Step::Close;
            }
            OPT_LIST => on_list(data, exports, outgoing),
            OPT_STARTTLS => refuse(option, REP_ERR_UNSUP, "encryption is not offered", outgoing),
            OPT_INFO | OPT_GO => return self.on_info(option, data, exports, outgoing),
            OPT_STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                push(option, REP_ACK, &[], outgoing);
            }
            OPT_STRUCTURED_REPLY => refuse(option, REP_ERR_INVALID, "this option has no data", outgoing),
            OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => self.on_context(option, data, exports, outgoing),
            _ => refuse(option, REP_ERR_UNSUP, "this option is not known", outgoing),
        }
        Step::NextOption
    }

    fn on_export_name(&mut self, data: &[u8], exports: &dyn Exports, outgoing: &mut Outgoing) -> Step {
        let name = std::str::from_utf8(data).ok().filter(|name| name.len() <= NAME_BYTES_MAX as usize);
        let Some((name, export)) = name.and_then(|name| Some((name, exports.find(name)?))) else {
            return Step::Close;
        };
        outgoing.push_bytes(&export.size.to_be_bytes());
        outgoing.push_bytes(&self.flags(&export).to_be_bytes());
        if !self.no_zeroes {
            outgoing.push_bytes(&[0; 124]);
        }
        Step::Serve(self.session(name, &export))
    }

    fn on_info(&mut self, option: u32, data: &[u8], exports: &dyn Exports, outgoing: &mut Outgoing) -> Step {
        let Some(request) = InfoRequest::read(data) else {
            refuse(option, REP_ERR_INVALID, "the option is malformed", outgoing);
            return Step::NextOption;
        };
        let Some(export) = exports.find(request.name) else {
            refuse(option, REP_ERR_UNKNOWN, "no such export", outgoing);
            return Step::NextOption;
        };
        let size = export.size.to_be_bytes();
        push(
            option,
            REP_INFO,
            &[&INFO_EXPORT.to_be_bytes(), &size, &self.flags(&export).to_be_bytes()],
            outgoing,
        );
        if request.wants(INFO_NAME) {
            push(option, REP_INFO, &[&INFO_NAME.to_be_bytes(), export.name.as_bytes()], outgoing);
        }
        if request.wants(INFO_DESCRIPTION) {
            push(
                option,
                REP_INFO,
                &[&INFO_DESCRIPTION.to_be_bytes(), export.description.as_bytes()],
                outgoing,
            );
        }
        // Told unasked too, since it costs nothing to obey: any alignment, best whole blocks.
        let (minimum, preferred) = (1u32.to_be_bytes(), (weft_engine::buffer::BLOCK as u32).to_be_bytes());
        let sizes =
            [&INFO_BLOCK_SIZE.to_be_bytes()[..], &minimum, &preferred, &PAYLOAD_BYTES_MAX.to_be_bytes()];
        push(option, REP_INFO, &sizes, outgoing);
        push(option, REP_ACK, &[], outgoing);
        if option == OPT_GO { Step::Serve(self.session(request.name, &export)) } else { Step::NextOption }
    }

    fn on_context(&mut self, option: u32, data: &[u8], exports: &dyn Exports, outgoing: &mut Outgoing) {
        if option == OPT_SET_META_CONTEXT {
            // Whatever comes of it, an earlier choice does not count any more.
            self.context_of = None;
        }
        if !self.structured {
            return refuse(option, REP_ERR_INVALID, "structured replies come first", outgoing);
        }
        let Some(request) = ContextRequest::read(data) else {
            return refuse(option, REP_ERR_INVALID, "the option is malformed", outgoing);
        };
        if exports.find(request.name).is_none() {
            return refuse(option, REP_ERR_UNKNOWN, "no such export", outgoing);
        }
        let (wanted, id) = if option == OPT_SET_META_CONTEXT {
            (request.queries.contains(&BASE_ALLOCATION), BASE_ALLOCATION_ID)
        } else {
            // No query asks for all there are, and a namespace alone for all in it.
            let asks = |query: &&str| *query == BASE_ALLOCATION || *query == "base:";
            (request.queries.is_empty() || request.queries.iter().any(asks), 0)
        };
        if wanted {
            push(option, REP_META_CONTEXT, &[&id.to_be_bytes(), BASE_ALLOCATION.as_bytes()], outgoing);
            if option == OPT_SET_META_CONTEXT {
                self.context_of = Some(request.name.to_owned());
            }
        }
        push(option, REP_ACK, &[], outgoing);
    }

    fn flags(&self, export: &ExportInfo) -> u16 {
        // CAN_MULTI_CONN: a write is durable and seen by all when it is answered, so any connection's flush is good
        // for all of them.
        let always = FLAG_HAS_FLAGS | FLAG_SEND_FLUSH | FLAG_SEND_FUA | FLAG_CAN_MULTI_CONN | FLAG_SEND_CACHE;
        let changes = match export.is_read_only() {
            true => FLAG_READ_ONLY,
            false => FLAG_SEND_TRIM | FLAG_SEND_WRITE_ZEROES | FLAG_SEND_FAST_ZERO,
        };
        let structured = if self.structured { FLAG_SEND_DF } else { 0 };
        always | changes | structured
    }

    fn session(&self, name: &str, export: &ExportInfo) -> Session {
        Session {
            family: export.family,
            size: export.size,
            snapshot: export.snapshot,
            read_only: export.is_read_only(),
            structured: self.structured,
            block_status: self.context_of.as_deref() == Some(name),
        }
    }
}

fn on_list(data: &[u8], exports: &dyn Exports, outgoing: &mut Outgoing) {
    if !data.is_empty() {
        return refuse(OPT_LIST, REP_ERR_INVALID, "this option has no data", outgoing);
    }
    for name in exports.list() {
        push(OPT_LIST, REP_SERVER, &[&(name.len() as u32).to_be_bytes(), name.as_bytes()], outgoing);
    }
    push(OPT_LIST, REP_ACK, &[], outgoing);
}

fn refuse(option: u32, error: u32, why: &str, outgoing: &mut Outgoing) {
    push(option, error, &[why.as_bytes()], outgoing);
}

fn push(option: u32, reply: u32, parts: &[&[u8]], outgoing: &mut Outgoing) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    outgoing.push_bytes(&OPTION_REPLY_MAGIC.to_be_bytes());
    outgoing.push_bytes(&option.to_be_bytes());
    outgoing.push_bytes(&reply.to_be_bytes());
    outgoing.push_bytes(&(len as u32).to_be_bytes());
    for part in parts {
        outgoing.push_bytes(part);
    }
}
