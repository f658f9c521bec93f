//! Hostile frames: damage to good ones, and noise.

/// A repeatable source of numbers (Marsaglia's xorshift).
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() >> 16) as usize % end.max(1)
    }

    pub(crate) fn byte(&mut self) -> u8 {
        // Ends of ranges are where mistakes are.
        match self.below(6) {
            0 => 0,
            1 => 0xff,
            _ => (self.next() >> 24) as u8,
        }
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.byte()).collect()
    }
}

/// How far into a frame the headers go: what lies behind is payload, and damage there is all alike.
const HEADERS: usize = 130;

/// A frame at every length, with every bit of its headers flipped, every half word of them at its ends, and in random
/// disorder; `others` lend their bytes.
pub(crate) fn mutations(frame: &[u8], others: &[Vec<u8>], numbers: &mut Numbers) -> Vec<Vec<u8>> {
    let headers = frame.len().min(HEADERS);
    let mut all = vec![frame.to_vec()];
    all.extend((0..frame.len()).map(|length| frame[..length].to_vec()));
    for bit in 0..headers * 8 {
        let mut damaged = frame.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        all.push(damaged);
    }
    for at in (12..headers - 1).step_by(2) {
        for value in [0u16, 1, 0x0fff, 0xfff0, 0xffff] {
            let mut damaged = frame.to_vec();
            damaged[at..at + 2].copy_from_slice(&value.to_be_bytes());
            all.push(damaged);
        }
    }
    for _ in 0..300 {
        let mut damaged = frame.to_vec();
        for _ in 0..1 + numbers.below(5) {
            let at = 12 + numbers.below(headers - 12);
            damaged[at] = numbers.byte();
        }
        match numbers.below(4) {
            0 => damaged.truncate(14 + numbers.below(frame.len() - 14)),
            1 => damaged.extend({
                let length = numbers.below(200);
                numbers.bytes(length)
            }),
            _ => {}
        }
        all.push(damaged);
    }
    for _ in 0..50 {
        let other = &others[numbers.below(others.len())];
        let (head, tail) = (14 + numbers.below(frame.len() - 14), numbers.below(other.len()));
        all.push([&frame[..head], &other[tail..]].concat());
    }
    all
}

/// Noise that at least looks like IP.
pub(crate) fn noise(numbers: &mut Numbers) -> Vec<u8> {
    let length = 14 + numbers.below(150);
    let mut frame = numbers.bytes(length);
    let (kind, first) = match numbers.below(5) {
        0 => return frame,
        1 => ([0x81, 0x00], 0),
        2 => ([0x86, 0xdd], 0x60),
        _ => ([0x08, 0x00], 0x45),
    };
    frame[12..14].copy_from_slice(&kind);
    if first != 0 && frame.len() > 24 {
        frame[14] = first;
        let protocol = [6, 17, 132, 1, 58, 44, 0, 60][numbers.below(8)];
        let place = if first == 0x60 { 20 } else { 23 };
        frame[place] = protocol;
    }
    frame
}
