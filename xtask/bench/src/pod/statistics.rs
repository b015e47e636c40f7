//! Medians, of figures and of pairs of them. Pure.

/// The middle one, or the mean of the middle two; NaN of nothing.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let half = sorted.len() / 2;
    let upper = sorted.get(half).copied().unwrap_or(f64::NAN);
    if sorted.len() % 2 == 1 {
        return upper;
    }
    let lower = half.checked_sub(1).and_then(|index| sorted.get(index));
    lower.map_or(f64::NAN, |lower| f64::midpoint(*lower, upper))
}

/// The value below which this share of them lies, the nearest one that is there; NaN of nothing.
pub(crate) fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a position among some thousands"
    )]
    let position = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(position.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// The largest; 0 of nothing.
pub(crate) fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// Figures that were taken in turn: the baseline's and ours.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    baseline: Vec<f64>,
    ours: Vec<f64>,
}

impl Pairs {
    /// Adds a pair.
    pub(crate) fn push(&mut self, baseline: f64, ours: f64) {
        self.baseline.push(baseline);
        self.ours.push(ours);
    }

    /// The median of each.
    pub(crate) fn medians(&self) -> (f64, f64) {
        (median(&self.baseline), median(&self.ours))
    }

    /// The median of ours over the baseline's, pair by pair: it holds when the machine's speed drifts.
    pub(crate) fn ratio(&self) -> f64 {
        self.median_of(|baseline, ours| ours / baseline)
    }

    /// The median of what ours is more, pair by pair.
    pub(crate) fn added(&self) -> f64 {
        self.median_of(|baseline, ours| ours - baseline)
    }

    fn median_of(&self, of: impl Fn(f64, f64) -> f64) -> f64 {
        let pairs = self.baseline.iter().zip(&self.ours);
        median(&pairs.map(|(baseline, ours)| of(*baseline, *ours)).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_right() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!(median(&[]).is_nan());
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert!((percentile(&hundred, 0.99) - 99.0).abs() < 1e-9);
        assert!((percentile(&hundred, 1.0) - 100.0).abs() < 1e-9);
        assert!(percentile(&[], 0.5).is_nan());
        assert!((largest(&[1.0, 3.0, 2.0]) - 3.0).abs() < 1e-9);
    }

    #[test]
    fn pairs_are_compared_pair_by_pair() {
        let mut pairs = Pairs::default();
        // The machine became twice as slow in between.
        for (baseline, ours) in [(10.0, 11.0), (20.0, 22.0), (20.0, 22.0)] {
            pairs.push(baseline, ours);
        }
        assert!((pairs.ratio() - 1.1).abs() < 1e-9);
        assert!((pairs.added() - 2.0).abs() < 1e-9);
        assert_eq!(pairs.medians(), (20.0, 22.0));
    }
}
