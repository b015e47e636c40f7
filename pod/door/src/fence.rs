//! Which replica of our server may change something: the one with the highest fence. Pure.
//!
//! A replica that takes a sandbox over raises the fence before anything else. From then on calls under a lower one are
//! refused, however late they come: see [`crate::admission`], which compares in the instant in which a call is sent.

use berth_wire::admission::{EPOCH_HEADER, FENCE_HEADER, FenceState};
use http::HeaderMap;

/// What a fenced call says of its sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The instance of the door that it knows.
    epoch: String,
    /// Its fence.
    pub(crate) fence: u64,
}

/// Headers that are no stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("Berth-Epoch and Berth-Fence come together, each once; the fence is a number from 1")]
pub(crate) struct StampError;

impl Stamp {
    /// The stamp of a request with these headers, if it has one.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Option<Self>, StampError> {
        let [epoch, fence] = [EPOCH_HEADER, FENCE_HEADER].map(|name| {
            let mut values = headers.get_all(name).iter();
            (values.next(), values.next().is_some())
        });
        match (epoch, fence) {
            ((None, _), (None, _)) => Ok(None),
            ((Some(epoch), false), (Some(fence), false)) => {
                let epoch = epoch.to_str().map_err(|_| StampError)?.to_owned();
                let fence = fence.to_str().ok().and_then(number).ok_or(StampError)?;
                Ok(Some(Self { epoch, fence }))
            }
            _ => Err(StampError),
        }
    }
}

/// A fence in digits, without a sign.
fn number(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|&fence| digits && fence > 0)
}

/// Why a stamp, or a fence, does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stale {
    /// It was given to another instance of the door.
    Epoch,
    /// It is not the current fence.
    Fence,
}

/// The fence of one instance of the door.
#[derive(Debug)]
pub(crate) struct Fence {
    epoch: String,
    current: u64,
}

impl Fence {
    /// A fence that nobody has raised.
    pub(crate) fn new(epoch: String) -> Self {
        Self { epoch, current: 0 }
    }

    /// Where it stands.
    pub(crate) fn state(&self) -> FenceState {
        FenceState { epoch: self.epoch.clone(), fence: self.current }
    }

    /// Whether a call with this stamp may go now. A higher fence than the current one does not count either: only
    /// [`Fence::raise`] raises it.
    pub(crate) fn check(&self, stamp: &Stamp) -> Result<(), Stale> {
        if stamp.epoch != self.epoch {
            return Err(Stale::Epoch);
        }
        if stamp.fence == self.current { Ok(()) } else { Err(Stale::Fence) }
    }

    /// Raises it. The current one may be given again: its holder may not have heard the answer.
    pub(crate) fn raise(&mut self, fence: u64) -> Result<(), Stale> {
        if fence < self.current || fence == 0 {
            return Err(Stale::Fence);
        }
        self.current = fence;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers(headers: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: http::HeaderName = name.parse().expect("a name");
            map.append(name, value.parse().expect("a value"));
        }
        map
    }

    fn stamp(given: &[(&str, &str)]) -> Result<Option<Stamp>, StampError> {
        Stamp::of(&headers(given))
    }

    #[test]
    fn both_headers_or_neither() {
        assert_eq!(stamp(&[]), Ok(None));
        let both = stamp(&[("Berth-Epoch", "e"), ("Berth-Fence", "7")]);
        assert_eq!(both, Ok(Some(Stamp { epoch: "e".to_owned(), fence: 7 })));
        assert_eq!(stamp(&[("berth-epoch", "e")]), Err(StampError));
        assert_eq!(stamp(&[("berth-fence", "7")]), Err(StampError));
        for fence in ["", "0", "-1", "+1", "1 ", "1.0", "x", "18446744073709551616"] {
            assert_eq!(stamp(&[("berth-epoch", "e"), ("berth-fence", fence)]), Err(StampError), "{fence:?}");
        }
        let twice = [("berth-epoch", "e"), ("berth-fence", "7"), ("berth-fence", "8")];
        assert_eq!(stamp(&twice), Err(StampError));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Raise(u64),
        Call(bool, u64),
    }

    proptest! {
        #[test]
        fn only_the_last_that_raised_it_passes(steps in proptest::collection::vec(
            prop_oneof![(0..6_u64).prop_map(Step::Raise), (any::<bool>(), 1..6_u64).prop_map(|(epoch, fence)| Step::Call(epoch, fence))],
            1..40,
        )) {
            let mut fence = Fence::new("now".to_owned());
            let mut raised = Vec::new();
            for step in steps {
                match step {
                    Step::Raise(number) => {
                        let highest = raised.iter().copied().max().unwrap_or(1);
                        let result = fence.raise(number);
                        prop_assert_eq!(result.is_ok(), number >= highest);
                        if result.is_ok() { raised.push(number); }
                    }
                    Step::Call(ours, number) => {
                        let epoch = if ours { "now" } else { "before" }.to_owned();
                        let expected = match (ours, raised.iter().max() == Some(&number)) {
                            (false, _) => Err(Stale::Epoch),
                            (true, false) => Err(Stale::Fence),
                            (true, true) => Ok(()),
                        };
                        prop_assert_eq!(fence.check(&Stamp { epoch, fence: number }), expected);
                    }
                }
            }
        }
    }
}
