//! What clients do, message by message.

use super::limits::*;
use super::pretend::*;
use super::protocol::*;
use super::{Connection, Event, Handle, Outgoing, Want};
use std::sync::Arc;
use weft_engine::buffer::Buffer;
use weft_engine::interface::{Reply, Request, RequestError};

const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EPERM: u32 = 1;
const ALL: usize = usize::MAX;

#[test]
fn an_old_client_chooses_by_name() {
    for (flags, zeroes) in [(1, 124), (3, 0)] {
        let mut server = Server::new();
        let bytes = [client_flags(flags), option(OPT_EXPORT_NAME, b"disk")].concat();
        server.deliver(&bytes, ALL, true);
        assert_eq!(server.sent(18), b"NBDMAGICIHAVEOPT\0\x03");
        assert_eq!(server.sent(8), SIZE.to_be_bytes());
        let told = u16::from_be_bytes(server.sent(2).try_into().unwrap());
        assert_eq!(told & (FLAG_READ_ONLY | FLAG_SEND_DF), 0);
        assert_ne!(told & FLAG_CAN_MULTI_CONN, 0);
        assert_eq!(server.sent(zeroes), vec![0; zeroes]);
        server.deliver(&request(0, 0, 9, 0, 4096, &[]), ALL, true);
        assert_eq!(server.simple_reply(), (0, 9));
        assert_eq!(server.sent(4096), vec![0; 4096]);
        assert!(server.sent.is_empty());
    }
}

#[test]
fn a_client_that_names_no_export_of_ours_by_export_name_is_hung_up_on() {
    let mut server = Server::new();
    server.deliver(&[client_flags(3), option(OPT_EXPORT_NAME, b"nothing")].concat(), ALL, true);
    assert_eq!(server.connection.want(), Want::Close);
}

#[test]
fn a_new_client_lists_asks_and_goes() {
    let mut server = Server::new();
    let mut bytes = client_flags(3);
    bytes.extend(option(OPT_LIST, &[]));
    bytes.extend(option(OPT_STARTTLS, &[]));
    bytes.extend(option(77, b"what is this"));
    bytes.extend(option(OPT_INFO, &go("nothing", &[])));
    bytes.extend(option(OPT_INFO, b"rubbish"));
    bytes.extend(option(OPT_STRUCTURED_REPLY, b"data"));
    bytes.extend(option(OPT_STRUCTURED_REPLY, &[]));
    bytes.extend(option(OPT_GO, &go("", &[INFO_NAME, INFO_DESCRIPTION, 4711])));
    server.deliver(&bytes, ALL, true);
    server.sent(18);
    assert_eq!(server.option_reply(), (OPT_LIST, REP_SERVER, string("disk")));
    assert_eq!(server.option_reply(), (OPT_LIST, REP_SERVER, string("frozen")));
    assert_eq!(server.option_reply(), (OPT_LIST, REP_ACK, vec![]));
    for (number, error) in [
        (OPT_STARTTLS, REP_ERR_UNSUP),
        (77, REP_ERR_UNSUP),
        (OPT_INFO, REP_ERR_UNKNOWN),
        (OPT_INFO, REP_ERR_INVALID),
        (OPT_STRUCTURED_REPLY, REP_ERR_INVALID),
    ] {
        let (option, reply, text) = server.option_reply();
        assert_eq!((option, reply), (number, error));
        assert!(std::str::from_utf8(&text).is_ok_and(|text| !text.is_empty()), "errors say why");
    }
    assert_eq!(server.option_reply(), (OPT_STRUCTURED_REPLY, REP_ACK, vec![]));
    let (_, _, export) = server.option_reply();
    assert_eq!(export.len(), 12);
    assert_eq!(export[2..10], SIZE.to_be_bytes());
    let flags = u16::from_be_bytes(export[10..].try_into().unwrap());
    assert_eq!(flags, 0b1101_1110_1101 | FLAG_CAN_MULTI_CONN);
    assert_eq!(server.option_reply().2, b"\0\x01disk");
    assert_eq!(server.option_reply().2, b"\0\x02a test");
    assert_eq!(server.option_reply().2, [0, 3, 0, 0, 0, 1, 0, 0, 16, 0, 2, 0, 0, 0]);
    assert_eq!(server.option_reply(), (OPT_GO, REP_ACK, vec![]));
    assert!(server.sent.is_empty() && !server.connection.is_negotiating());
}

#[test]
fn contexts_need_structured_replies_and_count_for_their_export_only() {
    let mut server = Server::new();
    let mut bytes = client_flags(3);
    bytes.extend(option(OPT_SET_META_CONTEXT, &contexts("disk", &[BASE_ALLOCATION])));
    bytes.extend(option(OPT_STRUCTURED_REPLY, &[]));
    bytes.extend(option(OPT_LIST_META_CONTEXT, &contexts("disk", &[])));
    bytes.extend(option(OPT_LIST_META_CONTEXT, &contexts("disk", &["qemu:", "base:"])));
    bytes.extend(option(OPT_SET_META_CONTEXT, &contexts("disk", &["base:", "other:thing"])));
    bytes.extend(option(OPT_SET_META_CONTEXT, &contexts("frozen", &["x", BASE_ALLOCATION])));
    bytes.extend(option(OPT_GO, &go("disk", &[])));
    bytes.extend(request(7, 0, 1, 0, 4096, &[]));
    server.deliver(&bytes, ALL, true);
    server.sent(18);
    assert_eq!(server.option_reply().1, REP_ERR_INVALID);
    assert_eq!(server.option_reply().1, REP_ACK);
    for _ in 0..2 {
        let (_, reply, context) = server.option_reply();
        assert_eq!((reply, &context[4..]), (REP_META_CONTEXT, BASE_ALLOCATION.as_bytes()));
        assert_eq!(server.option_reply().1, REP_ACK);
    }
    assert_eq!(server.option_reply().1, REP_ACK, "a namespace alone chooses nothing");
    assert_eq!(server.option_reply().2[..4], BASE_ALLOCATION_ID.to_be_bytes());
    assert_eq!(server.option_reply().1, REP_ACK);
    for _ in 0..3 {
        server.option_reply();
    }
    let (flags, kind, cookie, error) = server.chunk();
    assert_eq!((flags, kind, cookie), (REPLY_FLAG_DONE, REPLY_ERROR, 1));
    assert_eq!(error[..4], EINVAL.to_be_bytes(), "the context was of another export");
}

#[test]
fn an_option_that_is_too_long_is_skipped_and_too_many_end_it() {
    let mut server = Server::new();
    let long = option(OPT_GO, &vec![0; OPTION_BYTES_MAX as usize + 1]);
    server.deliver(&[client_flags(3), long.clone(), option(OPT_LIST, &[])].concat(), 1000, true);
    server.sent(18);
    assert_eq!(server.option_reply().1, REP_ERR_TOO_BIG);
    assert_eq!(server.option_reply().1, REP_SERVER);
    for _ in 0..HANDSHAKE_BYTES_MAX / u64::from(OPTION_BYTES_MAX) {
        server.deliver(&long, 1 << 16, true);
    }
    assert_eq!(server.connection.want(), Want::Close);

    let mut server = Server::new();
    server.deliver(&client_flags(3), ALL, true);
    for _ in 0..HANDSHAKE_OPTIONS_MAX {
        server.deliver(&option(OPT_STARTTLS, &[]), ALL, true);
        assert_eq!(server.connection.want(), Want::Bytes);
    }
    server.deliver(&option(OPT_STARTTLS, &[]), ALL, true);
    assert_eq!(server.connection.want(), Want::Close);
}

#[test]
fn abort_is_acknowledged_and_nonsense_is_not() {
    let mut server = Server::new();
    server.deliver(&[client_flags(3), option(OPT_ABORT, &[])].concat(), ALL, true);
    server.sent(18);
    assert_eq!(server.option_reply(), (OPT_ABORT, REP_ACK, vec![]));
    assert_eq!(server.connection.want(), Want::Close);
    for nonsense in [client_flags(4), [client_flags(3), b"GET / HTTP/1.1\r\nHost: x\r\n".to_vec()].concat()] {
        let mut server = Server::new();
        server.deliver(&nonsense, ALL, true);
        assert_eq!((server.sent.len(), server.connection.want()), (18, Want::Close));
    }
}

#[test]
fn written_data_comes_back_and_holes_are_told() {
    let mut server = ready("disk", true);
    let data = vec![0xAB; 8192];
    server.deliver(&request(1, CMD_FLAG_FUA, 1, 4096, 8192, &data), ALL, true);
    assert_eq!(server.simple_reply(), (0, 1));
    server.deliver(&request(0, 0, 2, 0, 16384, &[]), ALL, true);
    let hole = |offset: u64, len: u32| [&offset.to_be_bytes()[..], &len.to_be_bytes()].concat();
    assert_eq!(server.chunk(), (0, REPLY_OFFSET_HOLE, 2, hole(0, 4096)));
    assert_eq!(server.chunk(), (0, REPLY_OFFSET_DATA, 2, [&4096u64.to_be_bytes()[..], &data].concat()));
    assert_eq!(server.chunk(), (REPLY_FLAG_DONE, REPLY_OFFSET_HOLE, 2, hole(12288, 4096)));
    // The same without parts.
    server.deliver(&request(0, CMD_FLAG_DF, 3, 0, 16384, &[]), ALL, true);
    let (flags, kind, _, whole) = server.chunk();
    assert_eq!((flags, kind, whole.len()), (REPLY_FLAG_DONE, REPLY_OFFSET_DATA, 8 + 16384));
    // Trimmed, it is a hole.
    server.deliver(&request(4, 0, 4, 4096, 8192, &[]), ALL, true);
    server.deliver(&request(6, CMD_FLAG_FAST_ZERO | CMD_FLAG_NO_HOLE, 5, 4096, 8192, &[]), ALL, true);
    assert_eq!((server.simple_reply(), server.simple_reply()), ((0, 4), (0, 5)));
    server.deliver(&request(0, 0, 6, 0, 16384, &[]), ALL, true);
    assert_eq!(server.chunk(), (REPLY_FLAG_DONE, REPLY_OFFSET_HOLE, 6, hole(0, 16384)));
    assert!(server.sent.is_empty());
}

#[test]
fn the_block_status_is_told_in_runs() {
    let mut server = ready("disk", true);
    server.disk[4096..12288].fill(1);
    let status = |pairs: &[(u32, u32)]| {
        let mut bytes = BASE_ALLOCATION_ID.to_be_bytes().to_vec();
        pairs.iter().for_each(|(len, state)| {
            bytes.extend(len.to_be_bytes());
            bytes.extend(state.to_be_bytes());
        });
        bytes
    };
    server.deliver(&request(7, 0, 1, 0, 20480, &[]), ALL, true);
    assert_eq!(server.chunk().3, status(&[(4096, 3), (8192, 0), (8192, 3)]));
    server.deliver(&request(7, CMD_FLAG_REQ_ONE, 2, 0, 20000, &[]), ALL, true);
    assert_eq!(server.chunk(), (REPLY_FLAG_DONE, REPLY_BLOCK_STATUS, 2, status(&[(4096, 3)])));
    server.deliver(&request(7, 0, 3, 0, 0, &[]), ALL, true);
    assert_eq!(server.chunk().3[..4], EINVAL.to_be_bytes());
}

#[test]
fn bad_requests_are_refused_and_the_next_ones_served() {
    let mut server = ready("disk", false);
    let (command_read, command_write, command_trim, command_zero) = (0, 1, 4, 6);
    let too_long = PAYLOAD_BYTES_MAX + 1;
    let story: [(u16, u16, u64, u32, u32); 14] = [
        (command_read, 0, SIZE - 4096, 4097, EINVAL),
        (command_read, 0, u64::MAX, 4096, EINVAL),
        (command_read, CMD_FLAG_DF, 0, 4096, EINVAL), // without structured replies
        (command_read, 0, 0, too_long, EINVAL),
        (command_write, 0, SIZE, 512, ENOSPC),
        (command_write, 0, u64::MAX - 5, 5, ENOSPC),
        (command_write, 0x80, 0, 512, EINVAL),
        (command_write, 0, 0, too_long, EINVAL),
        (command_trim, 0, SIZE, 1, EINVAL),
        (command_zero, 0, SIZE, 1, ENOSPC),
        (command_zero, CMD_FLAG_REQ_ONE, 0, 1, EINVAL),
        (5, 0, SIZE, 1, EINVAL),
        (7, 0, 0, 4096, EINVAL), // not agreed on
        (99, 0, 0, 4096, EINVAL),
    ];
    for (number, &(command, flags, offset, len, error)) in story.iter().enumerate() {
        let payload = if command == command_write { vec![1; len as usize] } else { vec![] };
        server.deliver(&request(command, flags, number as u64, offset, len, &payload), 1 << 20, true);
        assert_eq!(server.simple_reply(), (error, number as u64), "request {number}");
    }
    assert_eq!(server.answered, 0, "the engine saw none of them");
    // Nothing asked for, nothing done; nothing to cache; and flush needs no range.
    for (command, len) in [(0, 0), (1, 0), (4, 0), (6, 0), (5, 4096), (3, 0)] {
        server.deliver(&request(command, 0, 1, 0, len, &[]), ALL, true);
        assert_eq!(server.simple_reply(), (0, 1));
    }
    assert_eq!((server.answered, server.sent.len()), (1, 0));
    assert!(server.disk.iter().all(|&byte| byte == 0), "nothing was written");
}

#[test]
fn a_frozen_export_cannot_be_changed() {
    let mut server = ready("frozen", false);
    for (command, payload) in [(1, &[1; 512][..]), (4, &[]), (6, &[])] {
        server.deliver(&request(command, 0, 1, 0, 512, payload), 100, true);
        assert_eq!(server.simple_reply(), (EPERM, 1));
    }
    server.deliver(&request(3, 0, 2, 0, 0, &[]), ALL, true);
    assert_eq!(server.simple_reply(), (0, 2));
}

#[test]
fn a_snapshot_is_asked_for_by_its_generation_and_cannot_be_changed() {
    let mut server = ready("disk@past", false);
    for (command, payload) in [(1, &[1; 512][..]), (4, &[]), (6, &[])] {
        server.deliver(&request(command, 0, 1, 0, 512, payload), 100, true);
        assert_eq!(server.simple_reply(), (EPERM, 1));
    }
    server.deliver(&request(3, 0, 2, 0, 0, &[]), ALL, false);
    server.flush();
    assert_eq!(server.simple_reply(), (0, 2), "what does not change need not be flushed");
    server.deliver(&request(0, 0, 3, 512, 4096, &[]), ALL, false);
    assert!(
        matches!(server.waiting[..], [(_, Request::ReadSnapshot { snapshot: PAST, offset: 512, len: 4096 })]),
        "{:?}",
        server.waiting
    );
}

#[test]
fn errors_of_the_engine_reach_the_client_in_its_words() {
    for (command, error, errno) in [
        (0, RequestError::Damaged { block: 77 }, EIO),
        (0, RequestError::OutOfRange, EINVAL),
        (6, RequestError::OutOfRange, ENOSPC),
        (6, RequestError::NoSpace, ENOSPC),
        (3, RequestError::NotServed, EIO),
        (3, RequestError::Fenced, EIO),
    ] {
        for structured in [false, true] {
            let mut server = ready("disk", structured);
            server.deliver(&request(command, 0, 5, 0, 4096, &[]), ALL, false);
            refuse(&mut server, error);
            if structured {
                let (flags, kind, cookie, payload) = server.chunk();
                assert_eq!((flags, kind, cookie), (REPLY_FLAG_DONE, REPLY_ERROR, 5));
                assert_eq!(payload[..4], errno.to_be_bytes());
                assert_eq!(payload[6..], *error.to_string().as_bytes());
                assert_eq!(payload[4..6], (payload.len() as u16 - 6).to_be_bytes());
            } else {
                assert_eq!(server.simple_reply(), (errno, 5));
            }
        }
    }
}

#[test]
fn a_busy_engine_is_asked_again_and_the_client_waits() {
    let mut server = ready("disk", false);
    let write = request(1, 0, 1, 0, 512, &[9; 512]);
    server.deliver(&write, ALL, false);
    refuse(&mut server, RequestError::Busy);
    assert!(server.sent.is_empty() && server.connection.is_holding());
    assert_eq!(server.connection.memory_bytes(), 512, "its payload is there");
    let mut input = &request(3, 0, 2, 0, 0, &[])[..];
    assert!(server.connection.next_event(&mut input).is_none());
    assert_eq!((server.connection.want(), input.len()), (Want::Wait, 28), "nothing else is taken meanwhile");
    server.connection.resume();
    let Some(Event::Request { handle, .. }) = server.connection.next_event(&mut input) else {
        panic!("what was held comes again");
    };
    server.connection.reply(handle, Reply::Done);
    server.flush();
    assert_eq!(server.simple_reply(), (0, 1));
    assert!(matches!(server.connection.next_event(&mut input), Some(Event::Request { .. })));
}

#[test]
fn a_client_that_asks_too_much_at_once_has_to_wait() {
    let mut server = ready("disk", false);
    let many: Vec<u8> = (0..300).flat_map(|cookie| request(3, 0, cookie, 0, 0, &[])).collect();
    let mut input = &many[..];
    let mut open = Vec::new();
    while let Some(Event::Request { handle, .. }) = server.connection.next_event(&mut input) {
        open.push(handle);
    }
    assert_eq!((open.len(), server.connection.want()), (REQUESTS_MAX, Want::Wait));
    server.connection.reply(open.pop().unwrap(), Reply::Done);
    assert!(server.connection.next_event(&mut input).is_some());

    // Replies that nobody fetches count as well.
    let mut server = ready("disk", false);
    let mut rounds = 0;
    while server.connection.want() == Want::Bytes {
        let Some(Event::Request { handle, .. }) =
            server.connection.next_event(&mut &request(0, 0, 1, 0, 1 << 20, &[])[..])
        else {
            panic!("a read is a request")
        };
        server.connection.reply(handle, Reply::Data(vec![Buffer::copied(&vec![1; 1 << 20])]));
        rounds += 1;
        assert!(rounds <= 64, "the limit is met");
    }
    assert_eq!(server.connection.want(), Want::Wait);
    let mut taken = Outgoing::default();
    server.connection.swap_outgoing(&mut taken);
    assert_eq!(server.connection.want(), Want::Wait, "what a client does not receive is still there");
    assert!(server.connection.memory_bytes() > 60 << 20);
    server.connection.set_unsent(0);
    assert_eq!(server.connection.want(), Want::Bytes);
}

/// Reads a byte, which the engine has as a part of this.
fn read_a_byte(server: &mut Server, of: &Buffer) {
    let mut input = &request(0, 0, 1, 0, 1, &[])[..];
    let handle = asked(server, &mut input);
    server.connection.reply(handle, Reply::Data(vec![of.slice(0..1)]));
}

#[test]
fn replies_that_nobody_fetches_count_with_all_the_memory_they_keep() {
    for taken in [false, true] {
        let mut server = ready("disk", false);
        if taken {
            // The kernel's buffers are full, and the rest stays with us.
            read_a_byte(&mut server, &Buffer::copied(&[7; 4096]));
            server.connection.swap_outgoing(&mut Outgoing::default());
        }
        let mut kept = 0;
        while server.connection.want() == Want::Bytes {
            read_a_byte(&mut server, &Buffer::copied(&[7; 4096]));
            kept += 4096;
            assert!(kept <= BYTES_MAX + 4096, "the limit is met");
        }
        assert!(kept > BYTES_MAX / 2, "nor long before");
        assert_eq!(
            server.connection.memory_bytes() >= kept,
            taken,
            "what is about to be sent is let go of at once"
        );
        server.flush();
        assert_eq!((server.connection.want(), server.connection.memory_bytes()), (Want::Bytes, 0));
    }
}

#[test]
fn who_takes_its_replies_reads_on_in_large_memory() {
    let mut server = ready("disk", false);
    let large: Vec<Buffer> = (0..3).map(|byte| Buffer::copied(&vec![byte; 32 << 20])).collect();
    // Of the same memory again and again, as of what was read ahead; and here and there, of what was written at once.
    for _ in 0..1000 {
        assert_eq!(server.connection.want(), Want::Bytes);
        read_a_byte(&mut server, &large[0]);
    }
    assert_eq!(server.connection.memory_bytes(), 1000 * 17, "others are not kept from theirs");
    for round in 0..1000 {
        server.flush();
        assert_eq!(server.connection.want(), Want::Bytes, "with nothing unsent it goes on");
        read_a_byte(&mut server, &large[round % 3]);
    }
}

#[test]
fn after_goodbye_what_is_open_is_still_answered() {
    let mut server = ready("disk", false);
    let mut bytes = request(1, 0, 1, 0, 512, &[3; 512]);
    bytes.extend(request(2, 0, 2, 0, 0, &[]));
    bytes.extend(request(1, 0, 3, 0, 512, &[4; 512]));
    let mut connection_input = &bytes[..28];
    assert!(server.connection.next_event(&mut connection_input).is_none());
    let Event::Request { handle, .. } = server.connection.payload(Buffer::copied(&bytes[28..540]));
    let mut rest = &bytes[540..];
    assert!(server.connection.next_event(&mut rest).is_none() && rest.is_empty());
    assert_eq!(server.connection.want(), Want::Wait);
    server.connection.reply(handle, Reply::Done);
    assert_eq!(server.connection.want(), Want::Close);
    server.flush();
    assert_eq!(server.simple_reply(), (0, 1));
}

#[test]
fn a_request_without_its_magic_ends_the_connection() {
    let mut server = ready("disk", false);
    server.deliver(&[7; 28], ALL, true);
    assert_eq!((server.connection.want(), server.sent.len()), (Want::Close, 0));
}

#[test]
fn a_client_may_go_at_any_byte() {
    let mut bytes = full_handshake("disk");
    bytes.extend(request(1, 0, 1, 0, 600, &[3; 600]));
    bytes.extend(request(0, 0, 1, 0, 600, &[]));
    for end in 0..bytes.len() {
        let mut server = Server::new();
        server.deliver(&bytes[..end], ALL, true);
        server.connection.leave();
        assert_eq!(server.connection.want(), Want::Close);
    }
}

#[test]
fn a_read_that_has_to_wait_takes_no_memory() {
    let mut server = ready("disk", false);
    let mut input = &request(0, 0, 1, 0, 1 << 20, &[])[..];
    let Some(Event::Request { handle, .. }) = server.connection.next_event(&mut input) else {
        panic!("a read is a request")
    };
    assert_eq!(server.connection.memory_bytes(), 1 << 20);
    server.connection.reply(handle, Reply::Error(RequestError::Busy));
    assert_eq!(server.connection.memory_bytes(), 0);
    server.connection.resume();
    assert_eq!(server.connection.memory_bytes(), 0);
    assert!(server.connection.next_event(&mut &[][..]).is_some());
    assert_eq!(server.connection.memory_bytes(), 1 << 20, "now it is read");
}

/// The request that comes next.
fn asked(server: &mut Server, input: &mut &[u8]) -> Handle {
    match server.connection.next_event(input) {
        Some(Event::Request { handle, .. }) => handle,
        None => panic!("a read or a flush is a request"),
    }
}

#[test]
fn what_a_client_has_left_behind_is_not_done_later() {
    let mut server = ready("disk", false);
    let mut input = &[request(3, 0, 1, 0, 0, &[]), request(3, 0, 2, 0, 0, &[])].concat()[..];
    let (first, second) = (asked(&mut server, &mut input), asked(&mut server, &mut input));
    server.connection.reply(first, Reply::Error(RequestError::Busy));
    // The client goes: one request is held to be asked again, the other one the engine has.
    server.connection.leave();
    server.connection.resume();
    assert!(server.connection.next_event(&mut &[][..]).is_none(), "nothing is asked again");
    assert_eq!(server.connection.want(), Want::Wait, "what the engine has is waited for");
    server.connection.reply(second, Reply::Error(RequestError::Busy));
    server.connection.resume();
    assert!(server.connection.next_event(&mut &[][..]).is_none());
    assert_eq!(server.connection.want(), Want::Close);
    // It may have ended its own side only, behind its goodbye, and still listen: it is told of each.
    let mut server = ready("disk", false);
    let mut input =
        &[request(3, 0, 1, 0, 0, &[]), request(3, 0, 2, 0, 0, &[]), request(2, 0, 3, 0, 0, &[])].concat()[..];
    let (first, second) = (asked(&mut server, &mut input), asked(&mut server, &mut input));
    assert!(server.connection.next_event(&mut input).is_none());
    server.connection.reply(first, Reply::Error(RequestError::Busy));
    let before = server.connection.outgoing().len();
    server.connection.leave();
    let one = server.connection.outgoing().len() - before;
    assert!(one > 0, "that it will not be done is said");
    server.connection.reply(second, Reply::Error(RequestError::Busy));
    assert_eq!(server.connection.outgoing().len() - before, 2 * one);
    assert_eq!(server.connection.want(), Want::Close);
    // The node, which wants to stop, waits for those too.
    let mut server = ready("disk", false);
    server.deliver(&request(3, 0, 1, 0, 0, &[]), ALL, false);
    refuse(&mut server, RequestError::Busy);
    server.connection.hang_up();
    server.connection.resume();
    assert!(matches!(server.connection.next_event(&mut &[][..]), Some(Event::Request { .. })));
}

#[test]
fn the_greeting_comes_first() {
    let connection = Connection::new(Arc::new(Two));
    assert_eq!((connection.outgoing().len(), connection.want()), (18, Want::Bytes));
}
