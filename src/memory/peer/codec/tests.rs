use super::*;

fn held(device: u8) -> Held {
    Held {
        device: [device; 16],
        reserved: 1,
        live: 200,
        free: 3 << 20,
        asleep: 4,
        spare: [5, 6 << 30, 7],
        claimed: 8,
        guarantee: 9,
        most: Some(10),
        priority: -11,
        system_limit: Some(12),
        of_others: Some(13),
    }
}

fn told(name: &str, held: Vec<Held>) -> Answer {
    Answer::Told(Told { process: 77, name: name.to_owned(), held, pools: Vec::new(), others: Vec::new() })
}

fn told_pools(pools: Vec<PoolHeld>) -> Answer {
    Answer::Told(Told { process: 77, name: "n".repeat(NAME_BYTES), held: vec![held(1)], pools, others: Vec::new() })
}

fn told_others(others: Vec<(&str, u64)>) -> Answer {
    let others = others.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
    Answer::Told(Told { process: 77, name: "n".to_owned(), held: vec![held(1)], pools: Vec::new(), others })
}

fn pool(name: Option<&str>) -> PoolHeld {
    PoolHeld { id: (0, 1 << 40), name: name.map(str::to_owned), bytes: [1, 2, 3, BYTES_MOST] }
}

/// One question of each kind.
fn questions() -> Vec<Question> {
    let key = BlockKey { block: 1 << 40, secret: Secret([7; 16]) };
    let of_block = [
        BlockQuestion::Hold { in_flight: 1 << 50 },
        BlockQuestion::Describe { from: 256 },
        BlockQuestion::Extents { from: 1 << 20, count: 8 },
        BlockQuestion::Events { from: 0 },
        BlockQuestion::Channel,
        BlockQuestion::LetGo { mapping: u64::MAX },
        BlockQuestion::Arrived { in_flight: 3 },
    ];
    let give = |spare| MemoryQuestion::Give { spare, device: [3; 16], bytes: 1 << 40, within_ms: 77 };
    let of_memory = [
        MemoryQuestion::Tell { before: 1 << 60, with_pools: None },
        MemoryQuestion::Tell { before: u64::MAX, with_pools: Some([7; 16]) },
        MemoryQuestion::PassedBy { device: [8; 16], room: 1 << 41 },
    ];
    let of_block = of_block.map(|question| Question::OfBlock(key, question));
    let of_memory = Spare::ALL.map(give).into_iter().chain(of_memory).map(Question::OfMemory);
    of_block.into_iter().chain(of_memory).chain([Question::Unmapped { mapping: 5 }]).collect()
}

/// One answer of each kind, and the longest of those with lists.
fn answers() -> Vec<Answer> {
    let block = HeldBlock { lead: 1, bytes: 2, region: 5, extents: EXTENTS_MOST, events: 4, device: [6; 16] };
    let extents = [1, 2].map(|number| DescribedExtent { extent: Extent::from_number(number), bytes: number << 21 });
    let no_limits = Held { most: None, system_limit: None, of_others: None, ..held(2) };
    let most = Held { spare: [u64::MAX; 3], live: u64::MAX, priority: i32::MIN, ..held(3) }.limited();
    vec![
        Answer::Held(block, vec![7; 2 * EVENT_NAME]),
        Answer::Held(block, vec![7; DESCRIPTORS * EVENT_NAME]),
        Answer::described(&extents),
        Answer::Described(vec![(u64::MAX, u64::MAX); DESCRIBED]),
        Answer::Extents,
        Answer::Events(vec![0; DESCRIPTORS * EVENT_NAME]),
        Answer::Channel,
        Answer::ToEnd(vec![1, 1 << 40]),
        Answer::ToEnd(vec![u64::MAX; ENDED]),
        Answer::of(&Error::invalid_value("it was freed")),
        Answer::of(&Error::unavailable("\u{e9}".repeat(PACKET))),
        told("trainer", vec![held(1), no_limits]),
        told(&"n".repeat(NAME_BYTES), vec![most; DEVICES_MOST]),
        Answer::Given(BYTES_MOST),
        told_pools(vec![pool(Some("weights")), pool(None)]),
        told_others(vec![("NCCL", BYTES_MOST); POOLS_MOST]),
        told_pools(vec![PoolHeld { bytes: [BYTES_MOST; 4], ..pool(Some(&"n".repeat(NAME_BYTES))) }; POOLS_MOST]),
        told_pools(vec![PoolHeld { bytes: [u64::MAX; 4], ..pool(Some(&"é".repeat(NAME_BYTES))) }.limited()]),
    ]
}

/// Returns what a process reads from bytes, as it would write it.
fn read<M: Message>(packet: &[u8]) -> Option<Vec<u8>> {
    M::from_packet(packet).map(|message| message.to_packet())
}

fn travels_whole_or_not_at_all<M: Message>(messages: &[M]) {
    for packet in messages.iter().map(Message::to_packet) {
        assert!(packet.len() <= PACKET, "{} bytes", packet.len());
        assert_eq!(read::<M>(&packet).as_ref(), Some(&packet));
        assert!((0..packet.len()).all(|end| read::<M>(&packet[..end]).is_none()));
        assert!(read::<M>(&[&packet[..], b"\0"].concat()).is_none());
        // Another program's, and another version.
        for place in [0, HEAD.len() - 2] {
            let mut other = packet.clone();
            other[place] ^= 1;
            assert!(read::<M>(&other).is_none());
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of packets, and nothing unsafe")]
fn messages_travel_whole_or_not_at_all() {
    travels_whole_or_not_at_all(&questions());
    travels_whole_or_not_at_all(&answers());
    assert!(read::<Question>(b"").is_none() && read::<Answer>(&[0; 64]).is_none());
}

#[test]
fn a_number_has_one_form() {
    let packet = Question::Unmapped { mapping: 5 }.to_packet();
    let (last, begin) = packet.split_last().unwrap_or((&0, &[]));
    assert!(read::<Question>(&[begin, &[last | 0x80, 0]].concat()).is_none());
}

#[test]
fn what_is_more_than_there_can_be_is_no_answer() {
    let block = HeldBlock { lead: 1, bytes: 2, region: 5, extents: 3, events: 4, device: [6; 16] };
    let more = BYTES_MOST + 1;
    let too_long = "n".repeat(NAME_BYTES + 1);
    let wrong = [
        Answer::Held(HeldBlock { extents: EXTENTS_MOST + 1, ..block }, Vec::new()),
        Answer::Held(HeldBlock { events: EXTENTS_MOST + 1, ..block }, Vec::new()),
        Answer::Held(block, vec![0; EVENT_NAME + 1]),
        Answer::Held(block, vec![0; (DESCRIPTORS + 1) * EVENT_NAME]),
        Answer::Described(vec![(0, 0); DESCRIBED + 1]),
        Answer::Events(vec![0; (DESCRIPTORS + 1) * EVENT_NAME]),
        Answer::ToEnd(vec![0; ENDED + 1]),
        Answer::Failed("n".repeat(REASON_BYTES + 1)),
        told("", vec![held(1); DEVICES_MOST + 1]),
        told(&too_long, Vec::new()),
        told("", vec![Held { reserved: more, ..held(1) }]),
        told("", vec![Held { spare: [0, 0, more], ..held(1) }]),
        told("", vec![Held { guarantee: u64::MAX, ..held(1) }]),
        told("", vec![Held { most: Some(more), ..held(1) }]),
        told("", vec![Held { system_limit: Some(u64::MAX), ..held(1) }]),
        told("", vec![Held { of_others: Some(more), ..held(1) }]),
        Answer::Given(more),
        told_pools(vec![pool(None); POOLS_MOST + 1]),
        told_others(vec![("NCCL", 1); POOLS_MOST + 1]),
        told_others(vec![(&too_long, 1)]),
        told_others(vec![("NCCL", more)]),
        told_pools(vec![pool(Some(&too_long))]),
        told_pools(vec![PoolHeld { bytes: [0, 0, 0, more], ..pool(None) }]),
    ];
    for answer in wrong {
        assert!(read::<Answer>(&answer.to_packet()).is_none(), "{answer:?}");
    }
}

fn travelled(name: &str) -> Option<String> {
    match Answer::from_packet(&told(cut_name(name), Vec::new()).to_packet()) {
        Some(Answer::Told(told)) => Some(told.name),
        _ => None,
    }
}

#[test]
fn a_name_arrives_without_what_controls_a_terminal() {
    assert_eq!(travelled("caché").as_deref(), Some("caché"));
    assert_eq!(travelled("a\u{1b}[31m\u{9b}").as_deref(), Some("a?[31m?"));
    assert_eq!(travelled("").as_deref(), Some(""));
    let pools = Answer::from_packet(&told_pools(vec![pool(Some("\u{7}"))]).to_packet());
    assert!(matches!(pools, Some(Answer::Told(told)) if told.pools[0].name.as_deref() == Some("?")));
    // What is no text.
    let mut packet = told("x", Vec::new()).to_packet();
    for byte in packet.iter_mut().filter(|byte| **byte == b'x') {
        *byte = 0xff;
    }
    assert!(read::<Answer>(&packet).is_none());
}

#[test]
fn a_long_name_is_cut_between_characters() {
    assert_eq!(travelled(&"n".repeat(NAME_BYTES + 1)), Some("n".repeat(NAME_BYTES)));
    // The last character has two bytes, of which one would fit.
    let long = format!("n{}", "é".repeat(NAME_BYTES / 2));
    assert_eq!(travelled(&long), Some(format!("n{}", "é".repeat(NAME_BYTES / 2 - 1))));
}

/// Numbers that look random.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    /// Breaks a packet somewhere: bytes changed, cut out, doubled, or taken from another one.
    fn mutate(&mut self, packet: &mut Vec<u8>, other: &[u8]) {
        for _ in 0..=self.below(3) {
            let (from, bytes) = (self.below(packet.len() + 1), self.below(12));
            let to = (from + bytes).min(packet.len());
            match self.below(6) {
                0 | 1 if from < packet.len() => packet[from] = self.below(256) as u8,
                2 if from < packet.len() => packet[from] ^= 1 << self.below(8),
                3 => drop(packet.drain(from..to)),
                4 => {
                    let doubled = packet[from..to].to_vec();
                    packet.splice(from..from, doubled);
                }
                _ => {
                    let (start, end) = (from.min(other.len()), to.min(other.len()));
                    packet.splice(from..to, other[start..end].iter().copied());
                }
            }
        }
    }
}

/// Reads what may be anything, and returns whether it is taken: what is taken can be written and read again.
fn is_taken<M: Message>(packet: &[u8]) -> bool {
    let Some(taken) = read::<M>(packet) else { return false };
    assert!(taken.len() <= packet.len(), "a name is no longer than before");
    assert_eq!(read::<M>(&taken), Some(taken));
    true
}

#[test]
#[cfg_attr(miri, ignore = "thousands of packets, and nothing unsafe")]
fn broken_packets_are_read_or_refused() {
    let is_long = std::env::var("GPUPOOL_TEST_SECONDS").is_ok_and(|seconds| seconds != "1");
    let turns = if is_long { 1_000_000 } else { 20_000 };
    let corpus: Vec<_> =
        questions().iter().map(Message::to_packet).chain(answers().iter().map(Message::to_packet)).collect();
    let (mut chance, mut taken) = (Chance(0x9e37_79b9_7f4a_7c15), 0);
    for _ in 0..turns {
        let mut packet = corpus[chance.below(corpus.len())].clone();
        let other = chance.below(corpus.len());
        chance.mutate(&mut packet, &corpus[other]);
        taken += usize::from(is_taken::<Question>(&packet)) + usize::from(is_taken::<Answer>(&packet));
    }
    // Else nothing but the beginning would have been tried.
    assert!((turns / 20..turns * 2).contains(&taken), "{taken} of {turns}");
}
