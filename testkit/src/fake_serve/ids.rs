//! Ids in opencode's formats. Pure: the clock is passed in.

const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const MASK: u64 = 0xffff_ffff_ffff;

/// Makes ids that ascend, but for those of sessions, which descend: opencode lists the newest session first.
#[derive(Debug, Default)]
pub(super) struct Ids {
    last: u64,
}

impl Ids {
    /// `<prefix>_`, 12 hex digits of the time and a counter, 14 base62 characters.
    pub(super) fn next(&mut self, prefix: &str, unix_ms: i64) -> String {
        let stamp = self.stamp(unix_ms);
        format!("{prefix}_{:012x}{}", stamp & MASK, tail(stamp))
    }

    /// The id of a session: its time runs backwards.
    pub(super) fn session(&mut self, unix_ms: i64) -> String {
        let stamp = self.stamp(unix_ms);
        format!("ses_{:012x}{}", !stamp & MASK, tail(stamp))
    }

    fn stamp(&mut self, unix_ms: i64) -> u64 {
        let now = u64::try_from(unix_ms).unwrap_or_default().saturating_mul(0x1000);
        self.last = now.max(self.last) + 1;
        self.last
    }
}

/// Characters that look random: splitmix64 of the stamp.
fn tail(stamp: u64) -> String {
    let mut state = stamp;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    (0..14).map(|_| char::from(BASE62[usize::try_from(next() % 62).unwrap_or_default()])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_opencodes_format_and_order() {
        let mut ids = Ids::default();
        // Made by opencode 1.18.33 at these times: msg_22ac8eb89001..., ses_dd5371ccbffe...
        assert!(ids.session(1_796_014_138_164).starts_with("ses_dd5371ccbffe"));
        let first = ids.next("msg", 1_796_014_140_297);
        assert!(first.starts_with("msg_22ac8eb89001") && first.len() == 30, "{first}");
        let second = ids.next("msg", 1_796_014_140_000);
        assert!(second[..16] > first[..16], "also when the clock goes back");
        let (older, newer) = (ids.session(1_796_014_150_000), ids.session(1_796_014_160_000));
        assert!(newer < older);
    }
}
