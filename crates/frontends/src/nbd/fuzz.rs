//! Random clients: nothing they send makes the server panic, forget, or hoard.

use super::Want;
use super::limits::*;
use super::pretend::*;
use super::protocol::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

fn random_option(rng: &mut SmallRng) -> Vec<u8> {
    let name = ["disk", "", "frozen", "nothing"][rng.random_range(0..4)];
    let queries: &[&str] =
        [&["base:allocation"][..], &[], &["base:"], &["a:b", "base:allocation"]][rng.random_range(0..4)];
    match rng.random_range(0..12) {
        0 => option(OPT_EXPORT_NAME, name.as_bytes()),
        1 => option(OPT_ABORT, &[]),
        2 => option(OPT_LIST, &[]),
        3 => option(OPT_STARTTLS, &[]),
        4 => option(OPT_INFO, &go(name, &[INFO_BLOCK_SIZE, INFO_NAME])),
        5 => option(OPT_GO, &go(name, &[rng.random_range(0..5)])),
        6 => option(OPT_STRUCTURED_REPLY, &[]),
        7 => option(OPT_LIST_META_CONTEXT, &contexts(name, queries)),
        8 | 9 => option(OPT_SET_META_CONTEXT, &contexts(name, queries)),
        10 => option(rng.random(), &vec![rng.random(); rng.random_range(0..200)]),
        _ => option(rng.random_range(0..12), &vec![rng.random(); rng.random_range(0..80_000)]),
    }
}

#[test]
fn three_thousand_handshakes_that_are_wrong_somewhere() {
    let mut rng = SmallRng::seed_from_u64(1);
    let mut ends = BTreeMap::new();
    for _ in 0..3000 {
        let mut bytes =
            client_flags(if rng.random_ratio(1, 50) { rng.random() } else { rng.random_range(0..4) });
        for _ in 0..rng.random_range(0..12) {
            bytes.extend(random_option(&mut rng));
        }
        bytes.extend(request(0, 0, 1, 0, 4096, &[]));
        if rng.random() {
            for _ in 0..rng.random_range(1..8) {
                let place = rng.random_range(0..bytes.len());
                match rng.random_range(0..3) {
                    0 => bytes[place] = rng.random(),
                    1 => bytes[place] ^= 1 << rng.random_range(0..8),
                    _ => drop(bytes.drain(place..(place + rng.random_range(0..9)).min(bytes.len()))),
                }
                if bytes.is_empty() {
                    break;
                }
            }
        }
        let part = if rng.random() { usize::MAX } else { rng.random_range(1..600) };
        let mut server = Server::new();
        server.deliver(&bytes, part, true);
        assert!(server.unsent_max < 1 << 20, "answers to a handshake are small");
        *ends
            .entry((server.connection.is_negotiating(), server.connection.want() == Want::Close))
            .or_insert(0) += 1;
    }
    assert_eq!(ends.len(), 4, "all ends were seen: {ends:?}");
}

/// Takes all structured and simple replies apart: how often each cookie was answered, and all bytes it got.
fn replies(server: &mut Server) -> BTreeMap<u64, (u32, Vec<u8>)> {
    let mut told: BTreeMap<u64, (u32, Vec<u8>)> = BTreeMap::new();
    while !server.sent.is_empty() {
        let magic = u32::from_be_bytes(server.sent[..4].try_into().unwrap());
        if magic == SIMPLE_REPLY_MAGIC {
            let (error, cookie) = server.simple_reply();
            let entry = told.entry(cookie).or_default();
            entry.0 += 1;
            entry.1.extend(error.to_be_bytes());
        } else {
            let (flags, kind, cookie, payload) = server.chunk();
            assert!([REPLY_OFFSET_DATA, REPLY_OFFSET_HOLE, REPLY_BLOCK_STATUS, REPLY_ERROR].contains(&kind));
            assert!(!payload.is_empty());
            let entry = told.entry(cookie).or_default();
            entry.0 += u32::from(flags & REPLY_FLAG_DONE);
            entry.1.extend(kind.to_be_bytes());
            entry.1.extend(payload);
        }
    }
    told
}

fn random_request(rng: &mut SmallRng, cookie: u64) -> Vec<u8> {
    let command = if rng.random_ratio(1, 30) {
        rng.random_range(8..2000)
    } else {
        [0, 1, 3, 4, 5, 6, 7][rng.random_range(0..7)]
    };
    let flags = if rng.random_ratio(1, 4) { rng.random_range(0..64) } else { 0 };
    let mut len: u32 = match rng.random_range(0..10) {
        0 => 0,
        1 => rng.random_range(0..200_000),
        2 if command != 1 => rng.random(),
        _ => 512 * rng.random_range(1..33),
    };
    let offset = match rng.random_range(0..20) {
        0 => rng.random(),
        1 => SIZE - u64::from(len).min(SIZE),
        2 => SIZE - rng.random_range(0..SIZE),
        _ => 512 * rng.random_range(0..(SIZE / 512 - 400)),
    };
    if command == 1 && rng.random_ratio(1, 400) {
        len = PAYLOAD_BYTES_MAX + 1;
    }
    let payload = if command == 1 { vec![rng.random_range(0..3); len as usize] } else { vec![] };
    request(command, flags, cookie, offset, len, &payload)
}

#[test]
fn twelve_thousand_requests_are_each_answered_once() {
    let mut rng = SmallRng::seed_from_u64(2);
    for round in 0..120 {
        let structured = round % 3 != 0;
        let mut server = ready(if round % 7 == 0 { "frozen" } else { "disk" }, structured);
        let bytes: Vec<u8> = (0..100).flat_map(|cookie| random_request(&mut rng, cookie)).collect();
        let part = if rng.random() { usize::MAX } else { rng.random_range(1..9000) };
        // Answers come at once, or all at the end, in any order.
        server.deliver(&bytes, part, rng.random());
        let len = server.waiting.len();
        for index in 0..len {
            server.waiting.swap(index, rng.random_range(0..len));
        }
        server.answer_all();
        assert_eq!(server.connection.want(), Want::Bytes);
        assert_eq!(server.connection.open_requests(), 0);
        assert!(
            server.unsent_max <= BYTES_MAX + PAYLOAD_BYTES_MAX as usize,
            "what waits to be sent is limited"
        );
        let counted: Vec<u32> = if structured {
            replies(&mut server).into_values().map(|(count, _)| count).collect()
        } else {
            simple_replies(&mut server, &bytes).into_values().collect()
        };
        assert_eq!(counted, [1; 100], "round {round}");
    }
}

/// Simple replies do not tell how long their data is; the requests do.
fn simple_replies(server: &mut Server, requests: &[u8]) -> BTreeMap<u64, u32> {
    let mut reads = BTreeMap::new();
    let mut rest = requests;
    while rest.len() >= REQUEST_HEADER_BYTES {
        let command = u16::from_be_bytes(rest[6..8].try_into().unwrap());
        let cookie = u64::from_be_bytes(rest[8..16].try_into().unwrap());
        let len = u32::from_be_bytes(rest[24..28].try_into().unwrap()) as usize;
        if command == 0 {
            reads.insert(cookie, len);
        }
        rest = &rest[REQUEST_HEADER_BYTES + if command == 1 { len } else { 0 }..];
    }
    let mut counted = BTreeMap::new();
    while !server.sent.is_empty() {
        let (error, cookie) = server.simple_reply();
        if error == 0 {
            server.sent(reads.get(&cookie).copied().unwrap_or(0));
        }
        *counted.entry(cookie).or_insert(0) += 1;
    }
    counted
}

#[test]
fn it_makes_no_difference_how_the_bytes_arrive() {
    let mut rng = SmallRng::seed_from_u64(3);
    for _ in 0..30 {
        let bytes: Vec<u8> = (0..40).flat_map(|cookie| random_request(&mut rng, cookie)).collect();
        let told: Vec<_> = [usize::MAX, 1, 2, 27, 28, 29, 4096]
            .into_iter()
            .map(|part| {
                let mut server = Server::new();
                server.deliver(&full_handshake("disk"), part, true);
                let handshake = std::mem::take(&mut server.sent);
                server.deliver(&bytes, part, true);
                (handshake, replies(&mut server), server.disk)
            })
            .collect();
        assert_eq!(told[0].1.len(), 40);
        assert!(told.iter().all(|other| *other == told[0]), "as when everything arrives at once");
    }
}

#[test]
fn random_bytes_after_the_handshake() {
    let mut rng = SmallRng::seed_from_u64(4);
    for _ in 0..500 {
        let mut server = ready("disk", true);
        let mut bytes = random_request(&mut rng, 1);
        bytes.extend((0..rng.random_range(1..2000)).map(|_| rng.random::<u8>()));
        server.deliver(&bytes, rng.random_range(1..3000), true);
    }
}
