//! One figure of the pod, what it is compared with, and its bound. Pure.

use serde::{Deserialize, Serialize};

/// How a figure is compared with its baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Relation {
    /// Figure over baseline.
    Ratio,
    /// Figure minus baseline, in the figure's unit.
    Added,
}

/// What a figure must keep.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    /// No more than this.
    AtMost(f64),
    /// No less.
    AtLeast(f64),
}

/// A figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// What was measured.
    pub(crate) name: String,
    /// Unit of figure and baseline.
    pub(crate) unit: String,
    /// The same without our programs, or another program's.
    pub(crate) baseline: Option<f64>,
    /// Ours.
    pub(crate) value: f64,
    /// The comparison, taken pair by pair where there are pairs.
    pub(crate) compared: Option<(Relation, f64)>,
    /// What the comparison must keep, or the figure itself when there is none.
    pub(crate) bound: Option<Bound>,
}

impl Figure {
    /// A figure that is compared with nothing.
    pub(crate) fn plain(name: &str, unit: &str, value: f64) -> Self {
        Self {
            name: name.to_owned(),
            unit: unit.to_owned(),
            baseline: None,
            value,
            compared: None,
            bound: None,
        }
    }

    /// A figure beside its baseline.
    pub(crate) fn compared(
        name: &str,
        unit: &str,
        (baseline, value): (f64, f64),
        compared: (Relation, f64),
    ) -> Self {
        Self {
            name: name.to_owned(),
            unit: unit.to_owned(),
            baseline: Some(baseline),
            value,
            compared: Some(compared),
            bound: None,
        }
    }

    /// The same with an upper bound.
    pub(crate) fn at_most(self, bound: f64) -> Self {
        Self { bound: Some(Bound::AtMost(bound)), ..self }
    }

    /// The same with a lower bound.
    pub(crate) fn at_least(self, bound: f64) -> Self {
        Self { bound: Some(Bound::AtLeast(bound)), ..self }
    }

    /// Whether it keeps its bound, if it has one.
    pub(crate) fn keeps_bound(&self) -> Option<bool> {
        let judged = self.compared.map_or(self.value, |(_, value)| value);
        self.bound.map(|bound| match bound {
            Bound::AtMost(bound) => judged <= bound,
            Bound::AtLeast(bound) => judged >= bound,
        })
    }

    /// The cells of its row: unit, baseline, figure, comparison, bound.
    pub(crate) fn cells(&self) -> [String; 5] {
        let none = || "-".to_owned();
        [
            self.unit.clone(),
            self.baseline.map_or_else(none, short),
            short(self.value),
            self.compared.map_or_else(none, |(relation, value)| match relation {
                Relation::Ratio => format!("x {value:.3}"),
                Relation::Added => format!("{value:+.2}"),
            }),
            self.bound.map_or_else(none, |bound| self.judgement(bound)),
        ]
    }

    fn judgement(&self, bound: Bound) -> String {
        let kept = if self.keeps_bound() == Some(true) { "kept" } else { "**missed**" };
        match bound {
            Bound::AtMost(bound) => format!("at most {bound}: {kept}"),
            Bound::AtLeast(bound) => format!("at least {bound}: {kept}"),
        }
    }
}

/// Three or four digits that count.
fn short(value: f64) -> String {
    match value.abs() {
        magnitude if magnitude >= 100.0 => format!("{value:.0}"),
        magnitude if magnitude >= 10.0 => format!("{value:.1}"),
        magnitude if magnitude >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_judges_the_comparison_or_else_the_figure() {
        let memory = Figure::plain("memory", "MiB", 29.0);
        assert_eq!(memory.keeps_bound(), None);
        assert_eq!(memory.clone().at_most(30.0).keeps_bound(), Some(true));
        assert_eq!(memory.clone().at_most(28.0).keeps_bound(), Some(false));
        assert_eq!(memory.clone().at_least(29.0).keeps_bound(), Some(true));
        assert_eq!(memory.at_least(29.5).keeps_bound(), Some(false));
        let wall = Figure::compared("wall", "ms", (1_000.0, 1_040.0), (Relation::Ratio, 1.04));
        assert_eq!(wall.clone().at_most(1.05).keeps_bound(), Some(true));
        assert_eq!(wall.at_most(1.03).keeps_bound(), Some(false));
    }

    #[test]
    fn a_row_shows_what_is_there() {
        let cells = Figure::plain("memory", "MiB", 9.456).cells();
        assert_eq!(cells, ["MiB", "-", "9.46", "-", "-"]);
        let added = Figure::compared("first", "ms", (40.0, 40.5), (Relation::Added, 0.5)).at_most(2.0);
        assert_eq!(added.cells(), ["ms", "40.0", "40.5", "+0.50", "at most 2: kept"]);
        let ratio = Figure::compared("wall", "ms", (1_000.0, 1_100.0), (Relation::Ratio, 1.1)).at_most(1.05);
        assert_eq!(ratio.cells(), ["ms", "1000", "1100", "x 1.100", "at most 1.05: **missed**"]);
    }
}
