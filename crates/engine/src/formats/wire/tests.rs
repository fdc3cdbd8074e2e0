//! Whatever is said arrives as it was said; whatever else arrives is told to be nothing.

mod random;

use super::*;
use crate::buffer::{BLOCK, zeros};
use crate::codec::Codec;
use crate::formats::packing::{FrameSize, Packing};
use crate::formats::record::{Body, Record};
use crate::identity::{Block, DriveId, EgroupId, Epoch, FamilyId, Seq};
use crate::message::{Answer, BadUnit, Class, Content, Lacking, Question, Refusal, UnitRun};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use random::*;
use std::sync::Arc;

fn joined(pieces: &[Buffer]) -> Buffer {
    let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.bytes().iter().copied()).collect();
    Buffer::copied(&bytes)
}

/// What a receiver makes of these bytes.
fn received(bytes: &[u8]) -> Result<Packet, WireFault> {
    if bytes.len() < HEADER_BYTES {
        return Err(WireFault::Malformed);
    }
    let (head, rest) = bytes.split_at(HEADER_BYTES);
    let header = Header::decode(head)?;
    if rest.len() != header.body_len as usize + header.payload_len as usize {
        return Err(WireFault::Malformed);
    }
    let (body, payload) = rest.split_at(header.body_len as usize);
    decode(&header, body, &Buffer::copied(payload))
}

fn sent(packet: &Packet) -> Vec<u8> {
    let frame = encode(packet).expect("what is said in these tests is short enough");
    let mut bytes = frame.head.clone();
    frame.payload.iter().for_each(|piece| bytes.extend_from_slice(piece.bytes()));
    assert_eq!(bytes.len(), frame.bytes());
    bytes
}

/// The same thing said in the same pieces: units of egroups and data of replies may be cut differently on the way.
fn plain(packet: Packet) -> String {
    match packet {
        Packet::Message(Message::Ask {
            question: Question::WriteEgroup { egroup, class, content, blocks, replace, sharing, lacking },
            ..
        }) => {
            let (bytes, packing) = match content {
                Content::Units(units) => (joined(&units), None),
                Content::Packed { packing, bytes } => (bytes, Some(packing)),
                lost @ Content::Lost { .. } => {
                    return format!("{egroup} {class:?} {lost:?} {blocks:?} {replace} {lacking:?}");
                }
            };
            let bytes = bytes.bytes();
            format!("{egroup} {class:?} {packing:?} {bytes:?} {blocks:?} {replace} {sharing:?} {lacking:?}")
        }
        Packet::Reply { number, reply: Reply::Data(pieces) } => {
            format!("{number} {:?}", joined(&pieces).bytes())
        }
        // Debug leaves out what buffers hold.
        Packet::Message(Message::Ask { question: Question::Append { first, trim, records }, .. }) => {
            format!("{first} {trim} {}", contents(&records))
        }
        Packet::Message(Message::Ask {
            question: Question::AppendLate { first, since, records, urgent },
            ..
        }) => {
            format!("{first} {since} {urgent} {}", contents(&records))
        }
        Packet::Message(Message::Answer {
            answer: Ok(Answer::Records { records, lost, unread, end }),
            ..
        }) => {
            format!("{} {lost:?} {unread:?} {end}", contents(&records))
        }
        Packet::Message(Message::Answer {
            answer: Ok(Answer::Units(runs) | Answer::Frames(runs)), ..
        }) => {
            let run = |run: Result<Buffer, BadUnit>| run.map(|units| units.bytes().to_vec());
            format!("{:?}", runs.into_iter().map(run).collect::<Vec<_>>())
        }
        Packet::Request { number, request: Request::Write { offset, data }, .. } => {
            format!("{number} {offset} {:?}", data.bytes())
        }
        other => format!("{other:?}"),
    }
}

fn contents(records: &[Record]) -> String {
    let one = |record: &Record| match &record.body {
        Body::Data { block, data } => format!("{} {block} {:?}", record.seq, data.bytes()),
        other => format!("{} {other:?}", record.seq),
    };
    records.iter().map(one).collect()
}

#[test]
fn everything_arrives_as_it_was_said() {
    let mut random = SmallRng::seed_from_u64(11);
    for round in 0..12 {
        for which in 0..KINDS {
            let packet = some_packet(which, &mut random);
            let arrived = received(&sent(&packet));
            let arrived = arrived.unwrap_or_else(|fault| panic!("{round} {packet:?}: {fault}"));
            assert!(plain(packet.clone()) == plain(arrived), "round {round}, kind {which}: {packet:?}");
        }
    }
}

#[test]
fn payload_is_not_copied_and_arrives_where_drives_can_take_it() {
    let mut random = SmallRng::seed_from_u64(12);
    let data = some_blocks(&mut random, 8);
    let body = Body::Data { block: Block(5), data: data.clone() };
    let records = vec![
        Record { seq: Seq(1), body },
        Record { seq: Seq(2), body: Body::Zero { block: Block(1), count: 2 } },
    ];
    let question = Question::Append { first: Seq(1), trim: Seq(0), records };
    let (drive, family, epoch) = (DriveId(1), FamilyId(2), Epoch(3));
    let packet = Packet::Message(Message::Ask { call: 1, drive, family, epoch, question });
    let frame = encode(&packet).expect("it is short");
    assert_eq!(frame.payload[0].bytes().as_ptr(), data.bytes().as_ptr(), "sent from where it lies");
    let header = Header::decode(&frame.head[..HEADER_BYTES]).expect("it was just encoded");
    let payload = joined(&frame.payload);
    let arrived = decode(&header, &frame.head[HEADER_BYTES..], &payload).expect("it was just encoded");
    let Packet::Message(Message::Ask { question: Question::Append { records, .. }, .. }) = arrived else {
        panic!("an append arrives as an append");
    };
    let Body::Data { data, .. } = &records[0].body else { panic!("data arrives as data") };
    assert_eq!(data.bytes().as_ptr(), payload.bytes().as_ptr(), "handed on from where it was received");
}

#[test]
fn holes_do_not_cross_the_network() {
    let reply = Reply::Data(vec![zeros(1 << 20), zeros(1 << 20), zeros(4096)]);
    let bytes = sent(&Packet::Reply { number: 1, reply });
    assert!(bytes.len() < 100, "{} bytes for nothing but zeros", bytes.len());
    let Ok(Packet::Reply { reply: Reply::Data(pieces), .. }) = received(&bytes) else {
        panic!("data arrives as data");
    };
    assert_eq!(joined(&pieces).bytes(), vec![0; (2 << 20) + 4096]);
}

#[test]
fn no_flipped_bit_and_no_cut_passes() {
    let mut random = SmallRng::seed_from_u64(13);
    for which in 0..KINDS {
        let bytes = sent(&some_packet(which, &mut random));
        for _ in 0..20 {
            let mut other = bytes.clone();
            let end = if random.random() { HEADER_BYTES } else { other.len() };
            let at = random.random_range(0..end);
            other[at] ^= 1 << random.random_range(0..8);
            assert!(received(&other).is_err(), "kind {which}, byte {at}");
            assert!(received(&bytes[..random.random_range(0..bytes.len())]).is_err(), "kind {which}");
        }
    }
}

/// Whoever knows the checksums can send what they like, and still nothing but an error comes of it.
#[test]
fn hostile_fields_with_good_checksums_are_refused() {
    let mut random = SmallRng::seed_from_u64(14);
    let mut refused = 0;
    for round in 0..40 * KINDS {
        let mut frame = encode(&some_packet(round % KINDS, &mut random)).expect("it is short");
        let mut payload = joined(&frame.payload);
        let body = &mut frame.head[HEADER_BYTES..];
        match random.random_range(0..4) {
            // A number somewhere becomes a huge one, or any.
            0 if body.len() >= 4 => {
                let at = random.random_range(0..=body.len() - 4);
                let value: u32 = if random.random() { u32::MAX } else { random.random() };
                body[at..at + 4].copy_from_slice(&value.to_le_bytes());
            }
            1 => {
                let left = random.random_range(0..=body.len());
                frame.head.truncate(HEADER_BYTES + left);
            }
            2 => frame.head.extend_from_slice(&[0; 9][..random.random_range(0..9)]),
            _ => payload = some_bytes(&mut random, 3 * BLOCK),
        }
        let body = &frame.head[HEADER_BYTES..];
        let header = Header {
            kind: Header::decode(&frame.head[..HEADER_BYTES]).expect("the header is as it was").kind,
            body_len: body.len() as u32,
            payload_len: payload.len() as u32,
            body_crc: crc32c(body),
            payload_crc: crc32c(payload.bytes()),
        };
        refused += u32::from(decode(&header, body, &payload).is_err());
    }
    assert!(refused > 10 * KINDS, "most of that is nonsense, and {refused} were told so");
}

#[test]
fn any_bytes_may_come() {
    const ALL: [Kind; 8] = [
        Kind::Hello,
        Kind::Ask,
        Kind::Answer,
        Kind::Press,
        Kind::Request,
        Kind::Reply,
        Kind::Ping,
        Kind::Pong,
    ];
    let mut random = SmallRng::seed_from_u64(15);
    for round in 0..20_000u32 {
        let mut bytes = vec![0; random.random_range(0..300)];
        random.fill_bytes(&mut bytes);
        let header = Header {
            kind: ALL[round as usize % ALL.len()],
            body_len: bytes.len() as u32,
            payload_len: 0,
            body_crc: crc32c(&bytes),
            payload_crc: crc32c(&[]),
        };
        // The first numbers are made likely ones, so that decoding gets beyond them.
        for place in bytes.chunks_exact_mut(4).skip(random.random_range(0..8)).take(2) {
            place.copy_from_slice(&random.random_range(0u32..12).to_le_bytes());
        }
        let header = Header { body_crc: crc32c(&bytes), ..header };
        let _ = decode(&header, &bytes, &zeros(0));
    }
}

#[test]
fn lengths_are_refused_before_anybody_takes_memory() {
    let mut bytes = [0; HEADER_BYTES];
    let good = Header { kind: Kind::Ask, body_len: 10, payload_len: 10, body_crc: 0, payload_crc: 0 };
    let limits = (BODY_BYTES_MAX as u32, PAYLOAD_BYTES_MAX as u32);
    good.put(&mut bytes);
    assert_eq!(Header::decode(&bytes), Ok(good));
    for bad in [Header { body_len: limits.0 + 1, ..good }, Header { payload_len: limits.1 + 1, ..good }] {
        bad.put(&mut bytes);
        assert_eq!(Header::decode(&bytes), Err(WireFault::TooLong));
    }
    good.put(&mut bytes);
    bytes[8] = VERSION as u8 + 1;
    crate::formats::fields::seal(&mut bytes, u32::from_le_bytes(*b"WfNW"));
    assert_eq!(Header::decode(&bytes), Err(WireFault::OtherVersion(VERSION + 1)));
    assert_eq!(Header::decode(&[b'G'; HEADER_BYTES]), Err(WireFault::NotOurs));
}

#[test]
fn what_is_too_long_is_not_sent() {
    let data = some_bytes(&mut SmallRng::seed_from_u64(16), 1 << 20);
    let reply = Reply::Data(vec![data; PAYLOAD_BYTES_MAX / (1 << 20) + 1]);
    assert!(encode(&Packet::Reply { number: 1, reply }).is_err());
    let egroups = vec![EgroupId(1); BODY_BYTES_MAX / 8 + 1];
    let (drive, family, epoch) = (DriveId(1), FamilyId(2), Epoch(3));
    let question = Question::DeleteEgroups { egroups };
    assert!(encode(&Packet::Message(Message::Ask { call: 1, drive, family, epoch, question })).is_err());
}

/// What a keeper would assert, a stranger must not be able to say.
#[test]
fn questions_that_no_owner_asks_do_not_decode() {
    let (drive, family, epoch) = (DriveId(1), FamilyId(2), Epoch(3));
    let zero = |seq, block, count| Record { seq: Seq(seq), body: Body::Zero { block: Block(block), count } };
    let append = |records| Question::Append { first: Seq(1), trim: Seq(0), records };
    let append_late =
        |records| Question::AppendLate { first: Seq(5), since: Epoch(1), records, urgent: false };
    let egroup = EgroupId(1);
    let write = |blocks: usize| Question::WriteEgroup {
        egroup,
        class: Class::Data,
        content: Content::Units(vec![zeros(BLOCK)]),
        blocks: vec![1; blocks],
        replace: false,
        sharing: None,
        lacking: Lacking::default(),
    };
    let lost = |blocks: usize| {
        let (content, blocks) = (Content::Lost { units: blocks as u32 }, vec![1; blocks]);
        let lacking = Lacking::default();
        let (class, replace, sharing) = (Class::Data, false, None);
        Question::WriteEgroup { egroup, class, content, blocks, replace, sharing, lacking }
    };
    let packed_without = |blocks: usize, len: usize, frames: Vec<u32>| {
        let sizes = [FrameSize { units: 4, len: 5000 }, FrameSize::RAW];
        let packing = Arc::new(Packing::of(Codec::Lz4, sizes).expect("it is sound"));
        let content = Content::Packed { packing, bytes: zeros(len) };
        let blocks = vec![1; blocks];
        let (class, replace, sharing) = (Class::Data, true, None);
        let lacking = Lacking { frames, blocks: true };
        Question::WriteEgroup { egroup, class, content, blocks, replace, sharing, lacking }
    };
    let packed = |blocks: usize, len: usize| packed_without(blocks, len, Vec::new());
    for question in [packed(5, 3 * BLOCK), packed_without(5, 3 * BLOCK, vec![1]), lost(960)] {
        let sound = Message::Ask { call: 1, drive, family, epoch, question };
        assert!(received(&sent(&Packet::Message(sound))).is_ok());
    }
    let data = |len| Body::Data { block: Block(0), data: zeros(len) };
    let questions = [
        append(vec![zero(1, 0, 1), zero(3, 0, 1)]),
        append(vec![zero(0, 0, 1)]),
        append(vec![zero(1, u64::MAX, 2)]),
        append(vec![zero(1, 0, 0)]),
        append(vec![Record { seq: Seq(1), body: data(0) }]),
        append(vec![Record { seq: Seq(1), body: data(100) }]),
        append(vec![zero(u64::MAX, 0, 1)]),
        append_late(vec![zero(5, 0, 1), zero(7, 0, 1)]),
        append_late(vec![zero(4, 0, 1)]),
        append_late(Vec::new()),
        write(0),
        write(2),
        write(961),
        lost(961),
        packed(4, 3 * BLOCK),
        packed(5, 2 * BLOCK),
        packed(5, 4 * BLOCK),
        packed_without(5, 3 * BLOCK, vec![1, 2]),
        packed_without(5, 3 * BLOCK, vec![1, 1]),
        Question::ReadFrames { egroup, runs: vec![UnitRun { first: 0, count: 1 }; 961] },
        Question::ReadUnits {
            egroup,
            runs: vec![UnitRun { first: 959, count: 2 }],
            frames: false,
            behind: false,
        },
        Question::ReadUnits {
            egroup,
            runs: vec![UnitRun { first: u32::MAX, count: 2 }],
            frames: false,
            behind: false,
        },
        Question::ReadUnits {
            egroup,
            runs: vec![UnitRun { first: 0, count: 960 }; 11],
            frames: false,
            behind: false,
        },
        Question::Trim { up_to: Seq(u64::MAX) },
    ];
    for question in questions {
        let text = format!("{question:?}");
        let bytes = sent(&Packet::Message(Message::Ask { call: 1, drive, family, epoch, question }));
        assert_eq!(received(&bytes).err(), Some(WireFault::Malformed), "{text}");
    }
}

#[test]
fn a_hello_is_told_from_everything_else() {
    let mut random = SmallRng::seed_from_u64(17);
    let hello = some_hello(&mut random);
    let bytes = hello.frame().head;
    assert_eq!(Hello::decode(&bytes), Ok(hello));
    for _ in 0..200 {
        let mut other = bytes.clone();
        other[random.random_range(0..HELLO_BYTES)] ^= 1 << random.random_range(0..8);
        assert!(Hello::decode(&other).is_err());
    }
    // A frame of the same length that is something else.
    let (drive, family) = (DriveId(1), FamilyId(2));
    let refused = Message::Answer { call: 1, drive, family, free: 0, answer: Err(Refusal::LogFull) };
    let mut bytes = sent(&Packet::Message(refused));
    bytes.resize(HELLO_BYTES, 0);
    assert_eq!(Hello::decode(&bytes), Err(WireFault::Malformed));
}

#[test]
fn questions_go_one_way_and_answers_the_other() {
    for lane in Lane::ALL {
        for (kind, client, dialler) in [
            (Kind::Ask, false, true),
            (Kind::Answer, false, false),
            (Kind::Press, false, false),
            (Kind::Request, true, true),
            (Kind::Reply, true, false),
        ] {
            assert_eq!(lane.carries(kind, dialler), (lane == Lane::Client) == client);
            assert!(!lane.carries(kind, !dialler));
            assert!(!lane.carries(Kind::Hello, dialler));
        }
        // Whether somebody is there is asked where nothing large is in the way.
        for (kind, dialler) in [(Kind::Ping, true), (Kind::Pong, false)] {
            assert_eq!(lane.carries(kind, dialler), lane == Lane::Log);
            assert!(!lane.carries(kind, !dialler));
        }
    }
}
