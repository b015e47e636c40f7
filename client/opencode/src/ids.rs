//! Ids in opencode's own format, so that a prompt may be sent again under the same ids without a second turn.
//!
//! `msg_` or `prt_`, 12 hex digits of `(unix milliseconds * 0x1000 + n) mod 2^48`, and 14 base62 characters (measured
//! on opencode 1.15.4 and 1.18.33). Up to 1.15.13 an id that sorts after those that opencode makes itself sends the
//! model into an endless loop, so the time must be the real one (300 s off either way was seen to do no harm).

use std::sync::{Mutex, PoisonError};

use rand::{Rng, RngExt};

const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const TIME_MASK: u64 = 0xffff_ffff_ffff;

static GENERATOR: Mutex<IdGenerator> = Mutex::new(IdGenerator::new());

/// A new message id, greater than every id made before in this process.
pub fn message_id() -> String {
    next("msg")
}

/// A new part id, greater than every id made before in this process.
pub fn part_id() -> String {
    next("prt")
}

fn next(prefix: &str) -> String {
    let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default();
    let mut generator = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    generator.next(prefix, now, &mut rand::rng())
}

/// Bits of the milliseconds that an id holds.
const TIME_BITS: u64 = TIME_MASK >> 12;

/// When an id was made, in Unix milliseconds of which it holds the lowest 36 bits. None for what is no such id, and for
/// `ses_...`, which count downwards.
fn milliseconds(id: &str) -> Option<u64> {
    let (_, rest) = id.split_once('_').filter(|(prefix, _)| *prefix != "ses")?;
    Some(u64::from_str_radix(rest.get(..12)?, 16).ok()? >> 12)
}

/// True when an id says that it was made before this moment of the clock that made it. False for what is no such id.
pub fn is_made_before(id: &str, unix_ms: i64) -> bool {
    milliseconds(id).is_some_and(|made| is_behind(made, unix_ms.cast_unsigned()))
}

/// True when an id says that it was made after this moment of the clock that made it. False for what is no such id.
pub fn is_made_after(id: &str, unix_ms: i64) -> bool {
    milliseconds(id).is_some_and(|made| is_behind(unix_ms.cast_unsigned() & TIME_BITS, made))
}

/// True for an id that tells when it was made, as those of messages and parts do.
pub fn tells_time(id: &str) -> bool {
    milliseconds(id).is_some()
}

/// True when an id was made an hour or more before another, whose clock may be another one. False for what is no such
/// id.
pub fn is_much_older(id: &str, other: &str) -> bool {
    let hour = 3_600_000;
    milliseconds(id)
        .zip(milliseconds(other))
        .is_some_and(|(made, other)| is_behind(made, other.wrapping_sub(hour)))
}

/// Of moments that are known by their lowest bits only, what is nearer in the past is the past.
fn is_behind(made: u64, moment: u64) -> bool {
    (1..=TIME_BITS / 2).contains(&(moment.wrapping_sub(made) & TIME_BITS))
}

/// Makes ids from a clock and randomness that are passed in.
#[derive(Debug, Default)]
pub struct IdGenerator {
    last: u64,
}

impl IdGenerator {
    /// A generator that has made none.
    pub const fn new() -> Self {
        Self { last: 0 }
    }

    /// The next id; never smaller than the one before, also when the clock goes back.
    pub fn next(&mut self, prefix: &str, unix_ms: u64, random: &mut impl Rng) -> String {
        let stamp = unix_ms.saturating_mul(0x1000).max(self.last.saturating_add(1));
        self.last = stamp;
        let tail: String =
            (0..14).map(|_| char::from(BASE62[random.random_range(0..BASE62.len())])).collect();
        format!("{prefix}_{:012x}{tail}", stamp & TIME_MASK)
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    #[test]
    fn the_format_is_opencodes() {
        // Made by opencode 1.18.33 at 1796014140297 ms: msg_22ac8eb89001BnfjGYH1RshWeX, with n = 1.
        let mut generator = IdGenerator { last: 1_796_014_140_297 * 0x1000 };
        let id = generator.next("msg", 1_796_014_140_297, &mut StdRng::seed_from_u64(1));
        assert!(id.starts_with("msg_22ac8eb89001"), "{id}");
        assert_eq!(id.len(), "msg_22ac8eb89001BnfjGYH1RshWeX".len());
        assert!(id[4..].bytes().all(|byte| byte.is_ascii_alphanumeric()));
    }

    #[test]
    fn an_id_tells_whether_it_is_older() {
        // Both made by opencode 1.18.33: a message at 1796014140297 ms, and a request 18 s later.
        let (message, request) = ("msg_22ac8eb89001BnfjGYH1RshWeX", "per_22ac93258001nQJqGjK3j0RtVb");
        assert!(!is_made_before(message, 1_796_014_140_297));
        assert!(is_made_before(message, 1_796_014_140_298));
        assert!(!is_made_before(request, 1_796_014_140_298));
        for odd in ["", "msg_", "msg_xyz", "per_22ac8eb8900", "ses_dd3fed727ffeY2aSWYkrrcLFw1"] {
            assert!(!is_made_before(odd, 1_796_014_140_298), "{odd}");
        }
    }

    #[test]
    fn an_hour_is_much_older() {
        let ids = [
            "msg_22ac8eb89001BnfjGYH1RshWeX",
            "msg_22ac93258001nQJqGjK3j0RtVb",
            "msg_22c01cb43001QkI6m0EvDAGSQB",
        ];
        assert!(!is_much_older(ids[0], ids[1]) && !is_much_older(ids[1], ids[0]), "18 s");
        assert!(is_much_older(ids[0], ids[2]) && !is_much_older(ids[2], ids[0]), "hours");
        assert!(!is_much_older("msg_1", ids[2]));
    }

    #[test]
    fn ids_ascend_also_when_the_clock_goes_back() {
        let mut random = StdRng::seed_from_u64(2);
        let mut generator = IdGenerator::new();
        let clock = (0..10_000).map(|tick| 1_796_014_140_297 - (tick % 7) * 1_000);
        let ids: Vec<String> = clock.map(|now| generator.next("prt", now, &mut random)).collect();
        assert!(ids.windows(2).all(|pair| pair[0][..16] < pair[1][..16]));
    }

    #[test]
    fn ids_of_the_process_ascend() {
        let ids = [message_id(), part_id(), message_id()];
        assert!(ids[0][4..16] < ids[1][4..16] && ids[1][4..16] < ids[2][4..16], "{ids:?}");
    }
}
